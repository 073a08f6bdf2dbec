"""Reads checkpoints: every byte is checked before any of it is used. Runs in the worker."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from easyscale.core.errors import RefusedError
from easyscale.train.checkpoint.blocks import TensorEntry, bits_of
from easyscale.train.checkpoint.decode import decode
from easyscale.train.checkpoint.manifest import (
    MANIFEST_NAME,
    TENSORS_NAME,
    DamagedError,
    Manifest,
    StoredBlock,
    sequence_of,
)
from easyscale.train.checkpoint.state import Checkpoint, Found, JobState, Skipped
from easyscale.train.checkpoint.sums import PIECE_BYTES, sums_of

_FIRST_LINE_BYTES = 256


def load(path: str | Path, *, is_mapped: bool = True, check_sha256: bool = False) -> Checkpoint:
    """Read one checkpoint.

    Args:
        is_mapped: leave the values in the file and read them when they are used; what is written to them stays in this
            process. Otherwise they are read into memory.
        check_sha256: check every tensor's SHA-256 too, which takes several times as long as the sums.

    Raises:
        RefusedError: it is damaged, of another format or not there.
    """
    folder = Path(path)
    try:
        return _read(folder, is_mapped=is_mapped, check_sha256=check_sha256)
    except DamagedError as error:
        raise RefusedError(f"{folder} cannot be used: {error}; give another checkpoint") from error


def find_newest(folder: str | Path) -> Found | None:
    """The whole checkpoint that was saved last, or None where there is nothing at all.

    Raises:
        RefusedError: there is something, but no whole checkpoint.
    """
    folder = Path(folder)
    entries, skipped = list_checkpoints(folder)
    for path in entries:
        try:
            return Found(_read(path, is_mapped=True, check_sha256=False), tuple(skipped))
        except DamagedError as error:
            skipped.append(Skipped(path, str(error)))
    if not skipped:
        return None
    what = "; ".join(f"{item.path.name}: {item.reason}" for item in skipped)
    raise RefusedError(
        f"{folder} holds no whole checkpoint, so there is nothing to go on from ({what}): give another folder, or an "
        f"empty one to begin anew"
    )


def list_checkpoints(folder: Path) -> tuple[list[Path], list[Skipped]]:
    """What looks like a checkpoint, the newest first, and what does not.

    Raises:
        RefusedError: the folder cannot be read.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise RefusedError(f"{folder} cannot be read ({error.strerror}): give the folder of the checkpoints") from error
    order: list[tuple[int, Path]] = []
    skipped = []
    for path in (folder / name for name in names):
        try:
            order.append((sequence_of(_bytes_of(path / MANIFEST_NAME, _FIRST_LINE_BYTES)), path))
        except DamagedError as error:
            skipped.append(Skipped(path, str(error)))
    return [path for _, path in sorted(order, reverse=True)], skipped


def last_sequence(folder: Path) -> int:
    """The highest place in the order of saves that is taken; 0 if there is none."""
    entries, _ = list_checkpoints(folder)
    return sequence_of(_bytes_of(entries[0] / MANIFEST_NAME, _FIRST_LINE_BYTES)) if entries else 0


def _bytes_of(path: Path, limit: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedError(f"it has no {path.name}, so it is no checkpoint of EasyScale") from error
    except OSError as error:
        raise DamagedError(f"{path.name} cannot be read ({error.strerror})") from error


def _read(folder: Path, *, is_mapped: bool, check_sha256: bool) -> Checkpoint:
    manifest = _manifest(folder / MANIFEST_NAME)
    file = _File.open(folder / TENSORS_NAME, manifest, is_mapped=is_mapped)
    file.check()
    if check_sha256:
        file.check_sha256()
    try:
        state = _state(manifest, file)
    except (RefusedError, LookupError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise DamagedError(f"its state cannot be put together ({error})") from error
    sha256 = {name: block.sha256 for name, block in manifest.block_by_name.items()}
    return Checkpoint(folder, state, manifest.versions, sha256)


def _manifest(path: Path) -> Manifest:
    try:
        return Manifest.from_bytes(_bytes_of(path))
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise DamagedError(f"{path.name} was written by something else ({type(error).__name__}: {error})") from error


def _state(manifest: Manifest, file: _File) -> JobState:
    tensors = {name: file.tensor(entry) for name, entry in manifest.entry_by_name.items()}
    own = {name: tensors[name] for name in manifest.structure["tensors"]}
    meta: Mapping[str, Any] = decode(manifest.structure["meta"], tensors)
    return JobState(manifest.facts, manifest.global_step, own, meta)


@dataclass(slots=True)
class _File:
    """The tensors' file in memory, or mapped to it."""

    manifest: Manifest
    data: Any
    blocks: dict[tuple[str, bool], Tensor]

    @classmethod
    def open(cls, path: Path, manifest: Manifest, *, is_mapped: bool) -> _File:
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != manifest.file_bytes:
                    raise DamagedError(f"{path.name} has {size:,} bytes instead of {manifest.file_bytes:,}")
                if is_mapped:
                    data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
                else:
                    data = mmap.mmap(-1, size)
                    if file.readinto(data) != size:
                        raise DamagedError(f"{path.name} became shorter while it was read")
        except FileNotFoundError as error:
            raise DamagedError(f"{path.name} is missing") from error
        except OSError as error:
            raise DamagedError(f"{path.name} cannot be read ({error.strerror})") from error
        return cls(manifest, data, {})

    def check(self) -> None:
        found = sums_of(memoryview(self.data))
        if self.manifest.piece_bytes != PIECE_BYTES or len(found) != len(self.manifest.sums):
            raise DamagedError(f"{MANIFEST_NAME} has no sum for each piece of {PIECE_BYTES:,} bytes")
        for number, (was, now) in enumerate(zip(self.manifest.sums, found, strict=True)):
            if was != now:
                begin = number * self.manifest.piece_bytes
                raise DamagedError(f"{TENSORS_NAME} is not as it was written (in {self._names(begin)})")

    def check_sha256(self) -> None:
        for name, block in self.manifest.block_by_name.items():
            bytes_of_block = memoryview(self.data)[block.begin : block.begin + block.num_bytes]
            if hashlib.sha256(bytes_of_block).hexdigest() != block.sha256:
                raise DamagedError(f"{TENSORS_NAME} is not as it was written (the SHA-256 of {name} differs)")

    def _names(self, begin: int) -> str:
        """Which tensors a damaged piece belongs to."""
        end = begin + self.manifest.piece_bytes
        names = list(_overlapping(self.manifest.block_by_name, begin, end))
        more = f" and {len(names) - 3} others" if len(names) > 3 else ""
        return f"bytes {begin:,} to {end:,}: {', '.join(names[:3]) or 'its header'}{more}"

    def tensor(self, entry: TensorEntry) -> Tensor:
        """A tensor of its own on memory that tied ones share."""
        dtype = getattr(torch, entry.dtype)
        if entry.offset is not None and entry.stride is not None:
            base = self._block(entry, torch.uint8, [-1])
            first = entry.offset // dtype.itemsize
            return torch.empty(0, dtype=dtype).set_(base.untyped_storage(), first, entry.shape, entry.stride)
        return self._block(entry, dtype, entry.shape).detach()

    def _block(self, entry: TensorEntry, dtype: torch.dtype, shape: list[int]) -> Tensor:
        key = (entry.block, entry.offset is None)
        if key not in self.blocks:
            flat = self._flat(self.manifest.block_by_name[entry.block], dtype)
            made = flat.view(shape)
            if entry.offset is None and entry.stride is not None:
                made = torch.empty_strided(entry.shape, entry.stride, dtype=dtype)
                bits_of(made).copy_(bits_of(flat.view(shape)))
            self.blocks[key] = made
        return self.blocks[key]

    def _flat(self, block: StoredBlock, dtype: torch.dtype) -> Tensor:
        if block.num_bytes == 0:
            return torch.empty(0, dtype=dtype)
        data = torch.frombuffer(self.data, dtype=torch.uint8, count=block.num_bytes, offset=block.begin)
        return data.view(dtype)


def _overlapping(blocks: Mapping[str, StoredBlock], begin: int, end: int) -> Iterator[str]:
    for name, block in blocks.items():
        if block.num_bytes and block.begin < end and block.begin + block.num_bytes > begin:
            yield name
