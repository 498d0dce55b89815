"""A lock on a file that the kernel lets go when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from specs.errors import InputError


class FileLock:
    """One holder at a time among the processes of this machine, and the threads of each.

    The file stays: to remove it would let two processes lock two files of one name. Optuna's
    journals take it for their own lock, which is a file that outlives a killed process and stalls
    the next one for 30 s.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def acquire(self, wait: bool = True) -> bool:
        """Takes the lock; False where another holds it and this is not to wait.

        Raises:
            InputError: the file cannot be made or opened.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"cannot write {self._path}: {error.strerror}.") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(handle)
            return False
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle
        return True

    def release(self) -> None:
        """Lets it go; nothing where it is not held."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> None:
        """Waits for the lock."""
        self.acquire()

    def __exit__(self, *_error: object) -> None:
        """Lets it go."""
        self.release()
