"""Safe names, strict JSON and atomic writes for everything that a study leaves on disk."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tempfile
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specs.errors import InputError
from specs.files import atomic_text, path_exists

LONGEST_NAME = 80
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
    """A safe name made from free text: accents are dropped, every other character becomes a ``_``.

    Text of which letters are lost (another script, or too long) gets a hash, so that two such names
    stay apart.
    """
    plain = unicodedata.normalize("NFKD", text)
    kept = "".join(c if c.isascii() else "_" for c in plain if not unicodedata.combining(c))
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", kept).strip("_.-")
    lost = any(c.isalnum() and not c.isascii() for c in plain) or len(name) > LONGEST_NAME
    if lost:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        name = f"{name[: LONGEST_NAME - 9]}-{digest}".lstrip("_.-")
    return checked_name(name or "study")


def study_folder(out: Path, name: str) -> Path:
    """The folder ``out/name`` of a study. Creates nothing.

    Raises:
        InputError: the name is not safe, or a link leads out of ``out``.
    """
    folder = out / checked_name(name)
    if folder.is_symlink() and not folder.resolve().is_relative_to(out.resolve()):
        raise InputError(
            f"{folder} is a link that leads out of {out}; remove it or choose another --out."
        )
    return folder


def checked_folder(path: Path, what: str = "--out") -> Path:
    """``path`` if it is, or can become, a folder that we may write to. Creates nothing.

    Raises:
        InputError: a file is in the way, the nearest existing parent is not writable, or no folder
            can have the name.
    """
    parent = path
    try:
        while not parent.exists() and parent != parent.parent:
            parent = parent.parent
    except (OSError, ValueError) as error:
        raise _unusable(path, what, error) from None
    if not parent.is_dir():
        raise InputError(f"{what} {path} cannot be a folder: {parent} is a file.")
    if not os.access(parent, os.W_OK):
        raise InputError(f"{what} {path} cannot be written: no permission for {parent}.")
    try:
        # Permission is not all: nobody can make a file in /proc. This one never has a name.
        with tempfile.TemporaryFile(dir=parent):
            return path
    except OSError as error:
        raise _unusable(path, what, error) from None


def checked_file(path: Path, what: str, inputs: Iterable[Path | str | None] = ()) -> Path:
    """``path`` if a file can be written there and takes the place of no input. Creates nothing.

    Args:
        path: the file to write.
        what: the option that names it.
        inputs: what the command reads; None, and what is no file, is passed over.

    Raises:
        InputError: a folder is in the way, the parent cannot be written, no file can have the
            name, or the file is one of the inputs.
    """
    checked_folder(path.parent, what)
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError) as error:
        raise _unusable(path, what, error) from None
    if is_folder:
        raise InputError(f"{what} {path} is a folder; name a file.")
    keep_inputs([path], inputs, what)
    return path


def keep_inputs(
    written: Iterable[Path], inputs: Iterable[Path | str | None], what: str = "--out"
) -> None:
    """Refuses to write a file in the place of one that the command reads.

    Args:
        written: the files to write, there or not.
        inputs: what the command reads; None, and what is no file, is passed over.
        what: the option that says where files are written.

    Raises:
        InputError: one of the files is an input, by whatever name or link.
    """
    read = [Path(one) for one in inputs if one is not None and path_exists(Path(one))]
    for path in written:
        if path_exists(path) and any(path.samefile(one) for one in read):
            raise InputError(
                f"{what} would write {path}, which the command reads: it would be lost; name "
                "another."
            )


def _unusable(path: Path, what: str, error: OSError | ValueError) -> InputError:
    """The sentence for a path of which nothing can be asked."""
    reason = getattr(error, "strerror", None) or str(error)
    return InputError(f"{what} {path} cannot be used: {reason}; choose another.")


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
