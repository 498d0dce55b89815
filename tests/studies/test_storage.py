"""Storage addresses, passwords that never show, and a journal that was cut while written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from optuna.exceptions import DuplicatedStudyError
from optuna.study import StudyDirection
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import PendingRollbackError

from specs.errors import InputError
from studies.storage import (
    hide_password,
    is_transient,
    missing_driver,
    open_storage,
    storage_address,
)
from studies.turns import only_driver


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        ("runs/a.db", "sqlite", "sqlite:///runs/a.db"),
        ("sqlite:///runs/a.db", "sqlite", "sqlite:///runs/a.db"),
        ("a.journal", "journal", "journal://a.journal"),
        ("journal://runs/a.log", "journal", "journal://runs/a.log"),
        ("postgresql://me:se:cr%40et@host/db", "server", "postgresql://me:***@host/db"),
        ("postgresql+psycopg2://h/db?password=x&sslmode=a", "server", None),
    ],
)
def test_addresses(
    text: str, kind: str, shown: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    address = storage_address(text, Path("default.db"))
    assert address.kind == kind
    assert address.shown == (shown or "postgresql+psycopg2://h/db?password=***&sslmode=a")
    assert not list(tmp_path.iterdir()), "naming a storage creates nothing"


def test_a_database_that_was_deleted_is_made_anew(tmp_path: Path) -> None:
    address = storage_address(str(tmp_path / "a.db"), tmp_path / "a.db")
    directions = [StudyDirection.MAXIMIZE]
    open_storage(address).create_new_study(directions, "first")
    assert [study.study_name for study in open_storage(address).get_all_studies()] == ["first"]
    (tmp_path / "a.db").unlink()
    assert open_storage(address).get_all_studies() == []
    open_storage(address).create_new_study(directions, "second")
    assert [study.study_name for study in open_storage(address).get_all_studies()] == ["second"]


class _KilledError(BaseException):
    """Stands for SIGKILL: what SQLite had committed stays."""


@contextmanager
def _killed_before(statement: int) -> Iterator[None]:
    """Ends the block before the statement of this number that writes to a database."""
    left = [statement]

    def counted(*arguments: Any) -> None:
        if not arguments[2].strip().upper().startswith(("SELECT", "PRAGMA")):
            if left[0] == 0:
                raise _KilledError
            left[0] -= 1

    event.listen(Engine, "before_cursor_execute", counted)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", counted)


def _in_file(path: Path) -> set[str]:
    """Names of the tables and indexes of a SQLite file."""
    with closing(sqlite3.connect(path)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


def test_a_database_killed_before_any_statement_that_makes_it_is_made_whole(tmp_path: Path) -> None:
    whole = tmp_path / "whole.db"
    open_storage(storage_address(None, whole))
    assert "ix_studies_study_name" in _in_file(whole)
    for statement in count():
        path = tmp_path / f"{statement}.db"
        address = storage_address(None, path)
        try:
            with _killed_before(statement):
                open_storage(address)
        except _KilledError:
            storage = open_storage(address)
            assert _in_file(path) == _in_file(whole)
            storage.create_new_study([StudyDirection.MAXIMIZE], "s")
            with pytest.raises(DuplicatedStudyError):
                open_storage(address).create_new_study([StudyDirection.MAXIMIZE], "s")
        else:
            break
    assert statement > 12, "one a table at least"


def test_a_file_that_lacks_its_unique_index_gets_it_and_keeps_every_study(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    address = storage_address(None, path)
    open_storage(address)
    whole = _in_file(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP INDEX ix_studies_study_name")
        connection.executemany(
            "INSERT INTO studies (study_name) VALUES (?)", [("s",), ("s",), ("other",)]
        )
        connection.commit()
    names = [study.study_name for study in open_storage(address).get_all_studies()]
    assert names == ["s", "s.copy-2", "other"]
    assert _in_file(path) == whole


def test_many_that_open_a_new_database_at_once_share_it(tmp_path: Path) -> None:
    address = storage_address(None, tmp_path / "a.db")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(open_storage, [address] * 8))
    open_storage(address).create_new_study([StudyDirection.MAXIMIZE], "s")
    with pytest.raises(DuplicatedStudyError):
        open_storage(address).create_new_study([StudyDirection.MAXIMIZE], "s")


@pytest.mark.parametrize(
    "text",
    [
        *("mongodb://host/x", "notes.txt", "sqlite://", "journal://"),
        *("postgresql://me@host:port/x", "postgresql://me@[::1/x"),
    ],
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(InputError):
        storage_address(text, Path("default.db"))


CREDENTIALS = [
    "postgresql://me@myserver:S3CRET@host/x",
    "postgresql://me:S3CRET with blanks S3CRET@host/x",
    "postgresql://me:S3CRET/S3CRET@host/x",
    "postgresql://h/x?user=u&sslpassword=S3CRET",
    "postgresql://h/x?PASSWORD=S3CRET",
    "postgresql://h/x?password=S3CRET&password=S3CRET",
    "postgresql://h/x?passfile=S3CRET&options=-ca%3DS3CRET",
    "mysql+pymysql://u:S3CRET@h/x",
]
MISWRITTEN = [
    "postgresql:u:S3CRET@h/x",
    "postgresql:u:S3CRET@h/x.db",
    "host=1 password=S3CRET",
    "host=1 password=S3CRET.db",
    "postgresql://me:S3CRET@S3CRET@host/x",
    "postgresql://me:S3CRET@host/x;password=S3CRET",
    "postgresql://me:p@host:5432S3CRET/x",
    "mysql://me:S3CRET\n@host/x",
    "sqlite://me:S3CRET@host/x.db",
    "redis://me:S3CRET@host",
    "S3CRET://host",
]


@pytest.mark.parametrize("text", CREDENTIALS)
def test_no_password_is_shown(text: str) -> None:
    address = storage_address(text, Path("default.db"))
    assert "S3CRET" not in address.shown
    assert "S3CRET" not in hide_password(f"could not connect to {text}: no route\nto the host")


@pytest.mark.parametrize("text", MISWRITTEN)
def test_nothing_is_shown_of_what_may_hold_a_password(text: str) -> None:
    with pytest.raises(InputError, match="--storage") as caught:
        storage_address(text, Path("default.db"))
    assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "error", "advice"),
    [
        ("mysql://h/x", ModuleNotFoundError(name="MySQLdb"), "pip install mysqlclient."),
        ("mysql+pymysql://h/x", ModuleNotFoundError(name="pymysql"), "pip install pymysql."),
        ("postgresql://h/x", ModuleNotFoundError(name="psycopg2"), "'foretune[postgres]'."),
        ("postgresql://h/x", ImportError("libpq is missing"), "install it."),
    ],
)
def test_the_advice_names_the_package_of_the_driver(
    text: str, error: ImportError, advice: str
) -> None:
    on_top = ImportError("cannot connect")
    on_top.__cause__ = error
    for raised in (error, on_top):
        sentence = str(missing_driver(storage_address(text, Path("d.db")), raised))
        assert sentence.endswith(advice)


def test_a_server_that_cannot_be_reached_is_one_sentence_without_the_password() -> None:
    address = storage_address("postgresql://me:hunter2@127.0.0.1:1/db", Path("default.db"))
    with pytest.raises(InputError) as caught:
        open_storage(address)
    assert "hunter2" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_text("this is no database, " * 100)
    with pytest.raises(InputError, match=r"a\.db"):
        open_storage(storage_address(str(path), path))


def test_passwords_inside_a_message_are_hidden() -> None:
    text = hide_password("cannot reach mysql://a:b@c/d or postgresql://e:f@g/h")
    assert text == "cannot reach mysql://a:***@c/d or postgresql://e:***@g/h"


def test_a_journal_cut_in_its_last_line_opens_with_everything_before_it(tmp_path: Path) -> None:
    import optuna

    path = tmp_path / "a.journal"
    address = storage_address(str(path), path)
    study = optuna.create_study(storage=open_storage(address), study_name="s")
    study.set_user_attr("kept", 1)
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[-1][:20])
    again = optuna.load_study(storage=open_storage(address), study_name="s")
    assert again.user_attrs == {"kept": 1}
    again.set_user_attr("later", 2)
    assert optuna.load_study(storage=open_storage(address), study_name="s").user_attrs["later"] == 2


def test_two_drivers_of_one_study_are_refused(tmp_path: Path) -> None:
    address = storage_address(None, tmp_path / "a.db")
    with only_driver(address, tmp_path, "s"):
        with (
            pytest.raises(InputError, match="another foretune"),
            only_driver(address, tmp_path, "s"),
        ):
            pass
        with only_driver(address, tmp_path, "other"):
            pass
    with only_driver(address, tmp_path, "s"):
        pass


def test_a_connection_that_goes_within_a_transaction_may_come_back() -> None:
    assert is_transient(PendingRollbackError("Can't reconnect until it is rolled back"))
    assert not is_transient(ValueError("no storage"))
