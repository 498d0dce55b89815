"""Where studies are kept: SQLite by default, a journal file or a database server by URL.

A storage survives SIGKILL at any moment: databases roll back a cut transaction, a journal's lock is
held by the kernel and a line that was cut while being written is removed when it is opened again.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from specs.errors import InputError
from specs.files import input_file
from studies.file_lock import FileLock
from studies.files import checked_file

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

HIDDEN = "***"
_WITH_PASSWORD = re.compile(r":.*@")
_NOT_IN_A_HOST = re.compile(r"[@\s]")
_NOT_IN_A_DATABASE = re.compile(r"[@:=;&\s]")
_SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_JOURNAL_SUFFIXES = (".journal", ".log", ".jsonl")
SHOWN_IN_QUERY = frozenset(
    {
        *("application_name", "charset", "connect_timeout", "dbname", "gssencmode", "host"),
        *("keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "port"),
        *("ssl", "sslmode", "sslrootcert", "target_session_attrs", "tcp_user_timeout"),
    }
)
"""Parameters of a URL that hold no secret; the values of all others are hidden."""
_IN_URL = re.compile(r"(?<=://)(?P<user>[^:/\s]*):(?:(?!\w+://)[^\n])*@")
"""What stands before the last @ of a URL, blanks and further @ included."""
_IN_QUERY = re.compile(r"(?<=[?&])(?P<name>[^=&\s]+)=[^&\s]*")
_IN_PAIR = re.compile(
    r"(?P<name>\w*(?:password|passwd|pwd|passphrase|secret|token)\w*\s*[=:]\s*)"
    r"(?:'(?:[^'\\]|\\.)*'|\"[^\"]*\"|[^\s&;,]+)",
    re.IGNORECASE,
)
"""``password=...`` in a URL, in a connection string of libpq and in what drivers say."""
DRIVERS = {
    "psycopg2": "'foretune[postgres]'",
    "psycopg": "'psycopg[binary]'",
    "pg8000": "pg8000",
    "MySQLdb": "mysqlclient",
    "pymysql": "pymysql",
    "mysql": "mysql-connector-python",
    "mariadb": "mariadb",
}
"""Module of a database driver -> what pip installs it (docs.sqlalchemy.org, Dialects)."""

CREATING_TRIES = 5
BUSY_S = 60.0
"""Seconds that SQLite waits for another process that writes."""
POSTGRESQL_DRIVERS = ("psycopg2", "psycopg")
LIBPQ_SCHEMES = ("postgresql", *(f"postgresql+{name}" for name in POSTGRESQL_DRIVERS))
LIBPQ = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Connection parameters of libpq (s; the last one ms): a peer that is gone is noticed in 60 s."""
LASTING = ("disk is full", "no space left", "readonly", "read-only", "i/o error", "unable to open")
"""Words of errors that waiting does not mend."""

Result = TypeVar("Result")
Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StorageAddress:
    """A storage as a person names it: its kind, and its file or its URL."""

    kind: Literal["sqlite", "journal", "server"]
    url: str
    path: Path | None

    @property
    def driver_url(self) -> str:
        """The URL with the driver of PostgreSQL that is installed.

        SQLAlchemy 2.1 takes psycopg where none is named, earlier releases took psycopg2.
        """
        scheme, _, rest = self.url.partition("://")
        if scheme != "postgresql":
            return self.url
        drivers = [name for name in POSTGRESQL_DRIVERS if importlib.util.find_spec(name)]
        return f"{scheme}+{(drivers or POSTGRESQL_DRIVERS)[0]}://{rest}"

    @property
    def shown(self) -> str:
        """The address without its secrets: the only form that may be printed or stored."""
        if self.kind != "server":
            return hide_password(self.url)
        from sqlalchemy.engine import make_url

        return hide_password(make_url(self.url).render_as_string(hide_password=True))


def hide_password(text: str) -> str:
    """A message with the passwords of the URLs and connection strings in it replaced by ``***``."""

    def hidden_value(match: re.Match[str]) -> str:
        return match[0] if match["name"] in SHOWN_IN_QUERY else f"{match['name']}={HIDDEN}"

    hidden = _IN_URL.sub(lambda match: f"{match['user']}:{HIDDEN}@", text)
    hidden = _IN_QUERY.sub(hidden_value, hidden)
    return _IN_PAIR.sub(lambda match: f"{match['name']}{HIDDEN}", hidden)


def missing_driver(address: StorageAddress, error: ImportError) -> InputError:
    """The sentence for a storage whose driver is not installed."""
    found: BaseException | None = error
    while found is not None and not getattr(found, "name", None):
        found = found.__cause__ or found.__context__  # Optuna raises one of its own on top
    module = str(getattr(found, "name", "")).partition(".")[0]
    package = DRIVERS.get(module, module)
    advice = f"run: pip install {package}" if package else "install it"
    return InputError(f"the driver for {address.shown} is missing; {advice}.")


def storage_address(text: str | None, default: Path) -> StorageAddress:
    """The storage that ``--storage`` names; ``default`` is the SQLite file without it.

    Raises:
        InputError: the text is neither a URL that we know nor a file with a known suffix, or the
            file cannot be written.
    """
    if text is None:
        return _file_address("sqlite", default)
    scheme, separator, rest = text.partition("://")
    if not separator:
        miswritten = _WITH_PASSWORD.search(text) or _IN_PAIR.search(text)
        suffix = "" if miswritten else Path(text).suffix.lower()
        if suffix in _SQLITE_SUFFIXES:
            return _file_address("sqlite", Path(text))
        if suffix in _JOURNAL_SUFFIXES:
            return _file_address("journal", Path(text))
        # It may be a URL or a connection string that is miswritten: nothing of it is shown.
        raise InputError(
            "--storage names no storage; use a file ending in .db (SQLite) or .journal, or a URL "
            "such as postgresql://user@host/database."
        )
    if scheme == "journal":
        return _file_address("journal", Path(rest))
    if scheme == "sqlite":
        if rest[:1] not in ("", "/"):
            raise InputError("--storage sqlite:// has three slashes; write sqlite:///FILE.")
        return _file_address("sqlite", Path(rest.removeprefix("/")))
    if scheme.split("+")[0] in ("postgresql", "mysql"):
        return StorageAddress("server", _checked_url(text), None)
    raise InputError(
        "--storage is a URL of another kind; use sqlite, journal, postgresql or mysql."
    )


def _checked_url(url: str) -> str:
    """``url`` if it can be read as one of a server; errors show nothing of it."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        found = make_url(url)
    except (ArgumentError, ValueError):
        raise InputError(
            "--storage is no URL of a server; write it as postgresql://user@host:port/database."
        ) from None
    # SQLAlchemy ends a password at its first @, so the rest of it would be taken for the host.
    if not url.isprintable() or _NOT_IN_A_HOST.search(found.host or ""):
        raise InputError(
            "--storage is no URL of a server: an @ in a password is written %40, a / %2F and a "
            "blank %20."
        )
    if _NOT_IN_A_DATABASE.search(found.database or ""):
        raise InputError(
            "--storage names a database with signs that none has; write it as "
            "postgresql://user@host:port/database?option=value."
        )
    return url


def _file_address(kind: Literal["sqlite", "journal"], path: Path) -> StorageAddress:
    if not path.name:
        raise InputError(f"--storage {kind}:// names no file.")
    checked_file(input_file(path, again=True), "--storage")
    url = f"sqlite:///{path}" if kind == "sqlite" else f"journal://{path}"
    return StorageAddress(kind, url, path)


def open_storage(address: StorageAddress) -> BaseStorage:
    """The Optuna storage at this address, created where it is new.

    Raises:
        InputError: the server cannot be reached, its driver is not installed, or the file is not a
            storage; the message never holds a password.
    """
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        if address.path is not None:
            address.path.parent.mkdir(parents=True, exist_ok=True)
        if address.kind == "journal" and address.path is not None:
            return _open_journal(address.path)
        return _open_database(address)
    except ImportError as error:
        raise missing_driver(address, error) from None
    except (SQLAlchemyError, RuntimeError, ValueError, KeyError, OSError) as error:
        raise InputError(
            f"cannot open the storage {address.shown}: {first_line(error).rstrip('.')}."
        ) from None


_checked: set[str] = set()
"""Databases whose version this process has compared with Optuna's. That reads every migration of
Optuna, four times what opening takes without it, and a command opens its storage eight times."""


def _open_database(address: StorageAddress) -> BaseStorage:
    """The database, its tables made where they are missing."""
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

    for attempt in range(CREATING_TRIES):
        try:
            if address.kind == "sqlite":
                _complete_tables(address)
            opened = RDBStorage(
                address.driver_url,
                engine_kwargs=engine_arguments(address),
                skip_compatibility_check=address.driver_url in _checked,
                skip_table_creation=address.kind == "sqlite",
            )
            _checked.add(address.driver_url)
            return opened
        except (IntegrityError, OperationalError, ProgrammingError) as error:
            # Several that open a new database at once make the same tables: all but one fail.
            made_at_once = "already exists" in str(error) or isinstance(error, IntegrityError)
            if not made_at_once or attempt == CREATING_TRIES - 1:
                raise
            time.sleep(0.2 * (attempt + 1))
    raise AssertionError("unreachable")


_COPIES_APART = """
UPDATE studies SET study_name = study_name || '.copy-' || study_id
WHERE study_id NOT IN (SELECT min(study_id) FROM studies GROUP BY study_name)
"""
"""Renames studies of one name, which a file without its unique index takes. The first holds the
trials: Optuna makes the others and then fails to load them."""


def _complete_tables(address: StorageAddress) -> None:
    """Makes the tables and indexes that a SQLite file lacks, all in one transaction.

    Optuna lets SQLite commit each apart and makes indexes with their table alone: a process killed
    between a table and its unique index would leave a file that takes every study twice.
    """
    from optuna.storages._rdb.models import BaseModel  # Optuna offers them in no other way
    from sqlalchemy import create_engine

    tables = BaseModel.metadata.sorted_tables
    indexes = [index for table in tables for index in table.indexes]
    engine = create_engine(address.driver_url, **engine_arguments(address))
    try:
        with engine.begin() as connection:
            found = connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars().all()
            if {item.name for item in (*tables, *indexes)} <= set(found):
                return
            # SQLAlchemy's own begin leaves it to the driver, which begins none for tables.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            BaseModel.metadata.create_all(connection)
            if any(index.unique and index.name not in found for index in indexes):
                connection.exec_driver_sql(_COPIES_APART)
            for index in indexes:
                index.create(connection, checkfirst=True)
    finally:
        engine.dispose()


def engine_arguments(address: StorageAddress) -> dict[str, Any]:
    """How to connect: a dead server or network is noticed in a minute, a stale connection at once.

    What the URL itself states (``?connect_timeout=5``) is left alone.
    """
    if address.kind != "server":
        return {"connect_args": {"timeout": BUSY_S}}
    arguments: dict[str, Any] = {"pool_pre_ping": True}
    scheme = address.url.partition("://")[0]
    if scheme in LIBPQ_SCHEMES:
        wanted = {name: value for name, value in LIBPQ.items() if f"{name}=" not in address.url}
        arguments["connect_args"] = wanted
    return arguments


def first_line(error: BaseException) -> str:
    """The first line of what an error says, without passwords; where it wraps another, of that."""
    from optuna.exceptions import StorageInternalError

    if isinstance(error, StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    text = hide_password(str(getattr(error, "orig", None) or error)).strip()
    return text.splitlines()[0] if text else type(error).__name__


def is_transient(error: BaseException) -> bool:
    """Whether the storage may answer later: it restarts, the network is cut, another one writes."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, PendingRollbackError

    if isinstance(error, StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, PendingRollbackError):  # the connection went within a transaction
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, OperationalError | InterfaceError) and not any(
        words in str(error.orig).lower() for words in LASTING
    )


def patiently(
    action: Callable[[], Result],
    patience_s: float,
    told: Told = lambda _: None,
    let_go: Callable[[], None] = lambda: None,
) -> Result:
    """What ``action`` gives, tried again while the storage does not answer.

    ``action`` must do no harm when it is done twice: an answer that was lost is asked for again.

    Args:
        action: what to do.
        patience_s: for how long; pauses grow from 0.1 s to 10 s.
        told: hears once why it waits.
        let_go: called before each pause.

    Raises:
        InputError: the storage did not answer for that long.
    """
    deadline, pause_s = time.monotonic() + patience_s, 0.1
    while True:
        try:
            return action()
        except Exception as error:
            if not is_transient(error):
                raise
            if pause_s == 0.1:
                told(f"the storage does not answer ({first_line(error)}): trying again.")
            if time.monotonic() + pause_s > deadline:
                raise InputError(
                    f"the storage does not answer: {first_line(error)}. Nothing that it holds is "
                    "lost; run the same command again when it does."
                ) from None
            let_go()
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, 10.0)


@contextmanager
def in_one_sentence(address: StorageAddress) -> Iterator[None]:
    """Turns what a storage raises while a study is written into one sentence.

    Raises:
        InputError: the disk is full, the folder is read-only, or the server is gone.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, StorageInternalError, OSError) as error:
        raise InputError(
            f"the storage {address.shown} cannot be written: {first_line(error).rstrip('.')}; the "
            "trials that it holds are intact, so run the same command again when it can."
        ) from None


def _open_journal(path: Path) -> BaseStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    lock = FileLock(Path(f"{path}.lock"))
    with lock:
        _drop_cut_line(path)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=cast(Any, lock)))


def _drop_cut_line(path: Path) -> None:
    """Removes a last line without its newline: what a process killed in a write left behind."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
            os.fsync(file.fileno())
