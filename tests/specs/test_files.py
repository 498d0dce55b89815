"""A file that is written atomically is the old or the new one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specs.errors import InputError
from specs.files import atomic_text


def test_a_written_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    for text in ("old\r\n", "neu: ü\n"):
        with atomic_text(path) as file:
            file.write(text)
        assert path.read_bytes() == text.encode()
    assert path.stat().st_mode & 0o777 == 0o644


def _fail(path: Path) -> None:
    with atomic_text(path) as file:
        file.write("half of the new" * 10_000)
        raise ZeroDivisionError


def test_a_block_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        _fail(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_pipe_or_device_keeps_its_place(tmp_path: Path, through_a_link: bool) -> None:
    pipe = path = tmp_path / "pipe"
    os.mkfifo(pipe)
    if through_a_link:
        path = tmp_path / "link"
        path.symlink_to(pipe)
    with pytest.raises(InputError, match="device or a pipe"), atomic_text(path):
        pass
    assert pipe.is_fifo()
    assert path.is_symlink() == through_a_link
