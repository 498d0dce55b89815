"""Atomic writes: a file is either the old or the new one, never a part of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
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
