"""Safe names, strict JSON and atomic writes for everything that a study leaves on disk."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

from specs.errors import InputError
from specs.files import atomic_text

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def checked_name(name: str, what: str = "study name") -> str:
    """``name`` if it is safe as one path component and as a database key.

    Raises:
        InputError: it is empty, too long or holds a character other than letters, digits, . _ -.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"the {what} {name!r} cannot be used; take up to 100 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit."
        )
    return name


def name_from(text: str) -> str:
    """A safe name made from free text: every run of other characters becomes one ``_``."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("_.-")[:80]
    return checked_name(name or "study")


def checked_folder(path: Path, what: str = "--out") -> Path:
    """``path`` if it is, or can become, a folder that we may write to. Creates nothing.

    Raises:
        InputError: a file is in the way or the nearest existing parent is not writable.
    """
    parent = path
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        raise InputError(f"{what} {path} cannot be a folder: {parent} is a file.")
    if not os.access(parent, os.W_OK):
        raise InputError(f"{what} {path} cannot be written: no permission for {parent}.")
    return path


def checked_file(path: Path, what: str) -> Path:
    """``path`` if a file can be written there. Creates nothing.

    Raises:
        InputError: a folder is in the way or the parent cannot be written.
    """
    if path.is_dir():
        raise InputError(f"{what} {path} is a folder; name a file.")
    checked_folder(path.parent, what)
    return path


def write_atomically(path: Path, text: str) -> Path:
    """Writes ``text`` so that ``path`` is either the old or the new file, never a part of one."""
    with atomic_text(path) as file:
        file.write(text)
    return path


def to_json(content: Any) -> str:
    """Strict JSON: numpy scalars and arrays become numbers and lists, NaN and infinity null."""
    return json.dumps(_plain(content), indent=2, allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """``value`` in the types that JSON knows."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str | bool) or value is None:
        return value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
