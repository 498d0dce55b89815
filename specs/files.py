"""Files: atomic writes (a file is the old or the new one, never a part), and what may be read."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from specs.errors import InputError


@contextmanager
def atomic_text(path: Path) -> Iterator[TextIO]:
    """A text file to write to, which takes the place of ``path`` when the block ends well.

    Line ends are written as given. Parents are made. A block that fails leaves ``path`` as it was.

    Raises:
        InputError: ``path`` is a device or a pipe: to take the place of ``/dev/null`` would break
            the machine of a user who may.
        OSError: the folder cannot be written.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"cannot write {path}: it is a device or a pipe; name a file.")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def path_exists(path: Path) -> bool:
    """Whether there is something of this name that we may look at."""
    return _holds(path.exists)


def is_file(path: Path) -> bool:
    """Whether the path is a file that we may look at."""
    return _holds(path.is_file)


def is_folder(path: Path) -> bool:
    """Whether the path is a folder that we may look at."""
    return _holds(path.is_dir)


def _holds(asked: Callable[[], bool]) -> bool:
    """The answer about a path; no for a name that nothing can have, as one that is too long."""
    try:
        return asked()
    except (OSError, ValueError):
        return False


def input_file(path: Path, again: bool = False) -> Path:
    """``path`` if reading it comes to an end.

    Pipes without a name, which a shell makes of ``<(command)``, have somebody who writes; a named
    pipe may have nobody, and a device may never end.

    Args:
        path: a file that somebody names; one that is missing is left to whoever opens it.
        again: whether it is read more than once, which no pipe allows.

    Raises:
        InputError: it is a named pipe, a socket or a device, or a pipe that is read again.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return path
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return path
    if stat.S_ISFIFO(mode) and not again and not Path(os.path.realpath(path)).exists():
        return path
    raise InputError(
        f"{path} is {'a pipe' if stat.S_ISFIFO(mode) else 'a device or a socket'} and no file; "
        "write what comes from it to a file and give that."
    )
