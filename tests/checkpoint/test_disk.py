"""A file is written whole, whatever the file system thinks of writing past its cache."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from easyscale.train.checkpoint import disk

MIB = 1 << 20


def pages(size: int) -> memoryview:
    memory = mmap.mmap(-1, size)
    memory[:] = (bytes(range(251)) * (size // 251 + 1))[:size]
    return memoryview(memory)


@pytest.mark.parametrize("size", [0, 1, 4096, 8 * MIB - 1, 8 * MIB, 17 * MIB + 4097])
def test_every_size_is_written_whole(size: int, tmp_path: Path) -> None:
    data = pages(size) if size else memoryview(b"")
    lengths: list[int] = []
    disk.write_file(tmp_path / "file", data, lambda: lengths.append((tmp_path / "file").stat().st_size))
    assert (tmp_path / "file").read_bytes() == data
    assert lengths == [size // 2 // 4096 * 4096]


def test_memory_that_is_not_aligned_is_written_all_the_same(tmp_path: Path) -> None:
    data = pages(9 * MIB)[3:]
    disk.write_file(tmp_path / "file", data)
    assert (tmp_path / "file").read_bytes() == data


def test_a_file_system_that_has_only_its_cache_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_open = os.open

    def without_direct(path: Any, flags: int, *args: Any) -> int:
        if flags & disk._DIRECT:
            os.close(plain_open(path, flags & ~disk._DIRECT, *args))  # Linux makes the file before it says no
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return plain_open(path, flags, *args)

    data = pages(9 * MIB)
    monkeypatch.setattr(os, "open", without_direct)
    disk.write_file(tmp_path / "file", data)
    assert (tmp_path / "file").read_bytes() == data


def test_writes_that_take_less_than_was_given_go_on_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: plain_write(fd, data[: max(1, len(data) // 2 - 7)]))
    data = pages(9 * MIB)
    disk.write_file(tmp_path / "file", data)
    assert (tmp_path / "file").read_bytes() == data


def test_another_error_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        (tmp_path / "file").touch()
        disk.write_file(tmp_path / "file", pages(9 * MIB))
