"""Databases of tests wait for no disk, which is most of the time that a small study takes.

What was written is there for every other process at once, whether its writer is killed or not; only
a machine that loses its power would lose it.
"""

from __future__ import annotations

import contextlib
import sqlite3


def wait_for_no_disk() -> None:
    """Makes SQLAlchemy's connections to SQLite, from now on, leave writing to the kernel."""
    from sqlalchemy import Engine, event

    event.listen(Engine, "connect", _leave_writing_to_the_kernel)


def _leave_writing_to_the_kernel(connection: object, _record: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        with contextlib.suppress(sqlite3.Error):  # no database: its first statement says so
            connection.execute("PRAGMA synchronous = OFF").close()
