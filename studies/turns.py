"""Turns: what only one process may do at a time, over all processes that use a storage.

Beside a file it is a lock of the kernel on another file: one machine. On PostgreSQL it is an
advisory lock: all machines. Either is let go when its holder dies, however it dies.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specs.errors import InputError
from studies.file_lock import FileLock
from studies.files import checked_folder
from studies.storage import StorageAddress, engine_arguments, first_line, missing_driver

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

TELLING_S = 300.0
"""How long ``ask`` and ``tell`` wait for each other: each holds the measured study for seconds."""
JUST_KILLED_S = 3.0
"""How long a server may take to see that a driver was killed: it ends a statement first."""
_PAUSE_S = 0.05
_SERVER_KEEPALIVE_S = {"tcp_keepalives_idle": 30, "tcp_keepalives_interval": 10}
"""How soon the server notices that the holder of a lock is gone: 30 s + 3 times 10 s."""


class Held(Protocol):
    """A lock that is held."""

    def check(self) -> None:
        """Makes sure that it still is.

        Raises:
            InputError: the connection was lost and another process holds the lock now.
            SQLAlchemyError: the server does not answer.
        """
        ...


@contextmanager
def only_driver(
    address: StorageAddress, folder: Path, study: str, wait_s: float = 0.0
) -> Iterator[Held]:
    """Holds the right to drive a study, so that no trial is proposed or told twice.

    Args:
        address: the storage.
        folder: where a lock file goes if the storage is a server without advisory locks.
        study: name of the study.
        wait_s: how long to wait for another driver.

    Raises:
        InputError: another process drives the study now, or no lock can be taken.
    """
    held = _lock(address, folder, study)
    deadline = time.monotonic() + wait_s
    try:
        while not held.take():
            if time.monotonic() >= deadline:
                raise InputError(
                    f"another foretune is working on the study {study!r}; wait for it or stop it."
                )
            time.sleep(_PAUSE_S)
        yield held
    finally:
        held.release()


def _lock(address: StorageAddress, folder: Path, study: str) -> _KernelLock | _AdvisoryLock:
    if address.kind == "server" and address.url.startswith("postgresql"):
        return _AdvisoryLock(address, f"driver {study}")
    beside = address.path.parent if address.path is not None else folder
    checked_folder(beside, "--storage" if address.path is not None else "--out")
    return _KernelLock(beside / f".{study.replace('/', '-')}.driver")


class _KernelLock(FileLock):
    """A lock on a file: of this machine."""

    def take(self) -> bool:
        """Takes the lock; False where another process has it."""
        return self.acquire(wait=False)

    def check(self) -> None:
        """The kernel never takes it away."""


class _AdvisoryLock:
    """An advisory lock of PostgreSQL, which the server lets go with its connection."""

    def __init__(self, address: StorageAddress, name: str) -> None:
        self._address, self._name = address, name
        self._engine: Engine | None = None
        self._connection: Connection | None = None

    def take(self) -> bool:
        """Takes the lock; False where another process has it."""
        from sqlalchemy import text
        from sqlalchemy.exc import SQLAlchemyError

        try:
            connection = self._connected()
            wanted = {"key": lock_key(self._name)}
            return bool(connection.scalar(text("select pg_try_advisory_lock(:key)"), wanted))
        except ImportError as error:
            raise missing_driver(self._address, error) from None
        except SQLAlchemyError as error:
            raise InputError(
                f"cannot open the storage {self._address.shown}: {first_line(error).rstrip('.')}."
            ) from None

    def check(self) -> None:
        """Asks the server; a lock that was lost with its connection is taken again."""
        from sqlalchemy import text
        from sqlalchemy.exc import SQLAlchemyError

        wanted = {"key": lock_key(self._name)}
        if self._connection is not None:
            try:
                self._connection.scalar(text("select 1"))
                return
            except SQLAlchemyError:
                self.release()
        connection = self._connected()
        if not connection.scalar(text("select pg_try_advisory_lock(:key)"), wanted):
            raise InputError(
                "the connection to the storage was lost and another foretune took over the study."
            )

    def release(self) -> None:
        """Lets it go."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _connected(self) -> Connection:
        """The connection that holds the lock."""
        from sqlalchemy import NullPool, create_engine, text

        if self._connection is None:
            arguments: dict[str, Any] = engine_arguments(self._address)
            arguments.pop("pool_pre_ping")
            self._engine = create_engine(
                self._address.driver_url,
                poolclass=NullPool,
                isolation_level="AUTOCOMMIT",
                **arguments,
            )
            self._connection = self._engine.connect()
            for name, seconds in _SERVER_KEEPALIVE_S.items():
                self._connection.execute(text(f"set {name} = {seconds}"))
        return self._connection


def lock_key(name: str) -> int:
    """The 64-bit number by which PostgreSQL knows a lock."""
    digest = hashlib.sha256(f"foretune {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
