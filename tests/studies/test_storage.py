"""Storage addresses, passwords that never show, and a journal that was cut while written."""

from __future__ import annotations

from pathlib import Path

import pytest

from specs.errors import InputError
from studies.storage import hide_password, open_storage, storage_address
from studies.turns import only_driver


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        ("runs/a.db", "sqlite", "sqlite:///runs/a.db"),
        ("sqlite:///runs/a.db", "sqlite", "sqlite:///runs/a.db"),
        ("a.journal", "journal", "journal://a.journal"),
        ("journal://runs/a.log", "journal", "journal://runs/a.log"),
        ("postgresql://me:se:cr@et@host/db", "server", "postgresql://me:***@host/db"),
        ("postgresql+psycopg2://h/db?password=x&a=1", "server", None),
    ],
)
def test_addresses(
    text: str, kind: str, shown: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    address = storage_address(text, Path("default.db"))
    assert address.kind == kind
    assert address.shown == (shown or "postgresql+psycopg2://h/db?password=***&a=1")
    assert not list(tmp_path.iterdir()), "naming a storage creates nothing"


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
