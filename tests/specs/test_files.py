"""A file that is written atomically is the old or the new one."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from specs.errors import InputError
from specs.files import atomic_text, input_file, is_file, is_folder, path_exists


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


def test_files_and_pipes_without_a_name_may_be_read(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("text")
    source, sink = os.pipe()
    pipe = Path(f"/dev/fd/{source}")
    try:
        assert input_file(path) == input_file(path, again=True) == path
        assert input_file(tmp_path / "missing") == tmp_path / "missing"
        assert input_file(pipe) == pipe
        with pytest.raises(InputError, match="is a pipe and no file"):
            input_file(pipe, again=True)
    finally:
        os.close(source)
        os.close(sink)


def test_a_name_that_nothing_can_have_is_missing(tmp_path: Path) -> None:
    for name in ("a" * 300, "a\0b", "missing"):
        path = tmp_path / name
        assert not path_exists(path)
        assert not is_file(path)
        assert not is_folder(path)
    assert path_exists(tmp_path)
    assert is_folder(tmp_path)
    assert not is_file(tmp_path)


def test_what_may_never_end_is_not_read(tmp_path: Path) -> None:
    pipe, link, door = tmp_path / "pipe", tmp_path / "link", tmp_path / "door"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(door))
        for path in (pipe, link, door, Path("/dev/zero")):
            with pytest.raises(InputError, match="and no file"):
                input_file(path)
