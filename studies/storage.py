"""Where studies are kept: SQLite by default, a journal file or a database server by URL.

A storage survives SIGKILL at any moment: databases roll back a cut transaction, a journal's lock is
held by the kernel and a line that was cut while being written is removed when it is opened again.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from specs.errors import InputError
from studies.files import checked_file

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_JOURNAL_SUFFIXES = (".journal", ".log", ".jsonl")
_PASSWORD = re.compile(
    r"(?<=://)(?P<user>[^:/@\s]*):[^\s]*@|(?<=[?&;])(password|passwd|pwd)=[^&\s]*"
)


@dataclass(frozen=True, slots=True)
class StorageAddress:
    """A storage as a person names it: its kind, and its file or its URL."""

    kind: Literal["sqlite", "journal", "server"]
    url: str
    path: Path | None

    @property
    def shown(self) -> str:
        """The address without its password: the only form that may be printed or stored."""
        return hide_password(self.url)


def hide_password(text: str) -> str:
    """``text`` with the passwords of the URLs in it replaced by ``***``."""

    def masked(match: re.Match[str]) -> str:
        if match["user"] is not None:
            return f"{match['user']}:***@"
        return f"{match[2]}=***"

    return _PASSWORD.sub(masked, text)


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
        suffix = Path(text).suffix.lower()
        if suffix in _SQLITE_SUFFIXES:
            return _file_address("sqlite", Path(text))
        if suffix in _JOURNAL_SUFFIXES:
            return _file_address("journal", Path(text))
        raise InputError(
            f"--storage {text!r} is no storage; use a file ending in .db (SQLite) or .journal, or "
            "a URL such as postgresql://user@host/database."
        )
    if scheme == "journal":
        return _file_address("journal", Path(rest))
    if scheme == "sqlite":
        return _file_address("sqlite", Path(rest.removeprefix("/")))
    if scheme.split("+")[0] in ("postgresql", "mysql"):
        return StorageAddress("server", text, None)
    raise InputError(
        f"--storage has the scheme {scheme!r}; use sqlite, journal, postgresql or mysql."
    )


def _file_address(kind: Literal["sqlite", "journal"], path: Path) -> StorageAddress:
    if not path.name:
        raise InputError(f"--storage {kind}:// names no file.")
    checked_file(path, "--storage")
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
    if address.path is not None:
        address.path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if address.kind == "journal" and address.path is not None:
            return _open_journal(address.path)
        return optuna.storages.RDBStorage(address.url)
    except ImportError:
        raise InputError(
            f"the driver for {address.shown} is missing; run: pip install 'foretune[postgres]'."
        ) from None
    except (SQLAlchemyError, RuntimeError, ValueError, KeyError, OSError) as error:
        reason = hide_password(str(error)).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"cannot open the storage {address.shown}: {reason[0].rstrip('.')}."
        ) from None


def _open_journal(path: Path) -> BaseStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    lock = _KernelLock(path)
    lock.acquire()
    try:
        _drop_cut_line(path)
    finally:
        lock.release()
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


class _KernelLock:
    """A journal lock that the kernel lets go when its process dies, however it dies.

    Optuna's own lock is a file that outlives a killed process and stalls the next one for 30 s.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(f"{path}.lock")
        self._handle: int | None = None

    def acquire(self) -> bool:
        """Waits for the lock and takes it."""
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        """Lets the lock go."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


@contextmanager
def only_driver(address: StorageAddress, folder: Path, study: str) -> Iterator[None]:
    """Holds the right to drive a study on this machine, so that no trial is evaluated twice.

    The lock is a file beside the storage, or in ``folder`` where the storage is a server.

    Raises:
        InputError: another process drives the study now.
    """
    beside = address.path.parent if address.path is not None else folder
    beside.mkdir(parents=True, exist_ok=True)
    handle = os.open(beside / f".{study}.driver", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another foretune is working on the study {study!r}; wait for it or stop it."
            ) from None
        yield
    finally:
        os.close(handle)
