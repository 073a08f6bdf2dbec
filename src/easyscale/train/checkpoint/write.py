"""Writes one checkpoint; its folder appears by a rename, whole and on disk. In the worker, in a thread of its own."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from easyscale.train.checkpoint.blocks import FileLayout, TensorEntry, lay_out
from easyscale.train.checkpoint.disk import sync_folder, write_file
from easyscale.train.checkpoint.encode import encode
from easyscale.train.checkpoint.hashes import Hashes
from easyscale.train.checkpoint.manifest import (
    MANIFEST_NAME,
    TENSORS_NAME,
    Manifest,
    versions_now,
)
from easyscale.train.checkpoint.snapshot import HostBuffer
from easyscale.train.checkpoint.state import JobFacts, JobState
from easyscale.train.checkpoint.sums import PIECE_BYTES

PARTIAL = ".partial-"
REMOVED = ".removed-"

Hook = Callable[[str], None]
"""Called with the name of each point that a save passes: tests stop or kill the process there."""

POINTS = (
    "checkpoint.before_copy",
    "checkpoint.after_copy",
    "checkpoint.before_write",
    "checkpoint.during_write",
    "checkpoint.before_manifest",
    "checkpoint.before_rename",
    "checkpoint.after_rename",
    "checkpoint.during_removal",
    "checkpoint.after_removal",
)


@dataclass(frozen=True, slots=True)
class Draft:
    """A job's state as it was, in memory that training does not touch."""

    facts: JobFacts
    global_step: int
    structure: Any
    entry_by_name: Mapping[str, TensorEntry]
    data: memoryview
    hashes: Hashes

    @classmethod
    def of(cls, state: JobState, buffer: HostBuffer, threads: int) -> Draft:
        """Copy ``state``, and begin to hash it in ``threads``. The draft is valid until ``buffer`` takes another.

        Raises:
            RefusedError: something in it could not come back as it is.
        """
        structure, layout = plan(state)
        spans = {block.name: (block.begin, block.num_bytes) for block in layout.blocks}
        data = buffer.take(layout)
        return cls(state.facts, state.global_step, structure, layout.entry_by_name, data, Hashes(data, spans, threads))

    def manifest(self, sequence: int) -> Manifest:
        """What goes beside the file; waits until all is hashed."""
        return Manifest(
            sequence=sequence,
            global_step=self.global_step,
            facts=self.facts,
            versions=versions_now(),
            structure=self.structure,
            block_by_name=self.hashes.blocks(),
            entry_by_name=self.entry_by_name,
            file_bytes=len(self.data),
            piece_bytes=PIECE_BYTES,
            sums=self.hashes.sums(),
        )


def plan(state: JobState) -> tuple[Any, FileLayout]:
    """How ``state`` is stored: as JSON, and as a file of tensors.

    Raises:
        RefusedError: something in it could not come back as it is.
    """
    meta, tensors = encode(dict(state.meta), "meta", state.tensors)
    return {"tensors": list(state.tensors), "meta": meta}, lay_out({**state.tensors, **tensors})


def write_checkpoint(draft: Draft, folder: Path, sequence: int, hook: Hook) -> Path:
    """Write ``draft`` into ``folder``; nothing of it is left when that fails.

    Raises:
        OSError: the disk is full, cannot be written or is gone.
    """
    partial = folder / f"{PARTIAL}step-{draft.global_step:08d}"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        _fill(partial, draft, sequence, hook)
        hook("checkpoint.before_rename")
        target = _free_name(folder, draft.global_step)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    hook("checkpoint.after_rename")
    sync_folder(folder)
    return target


def _fill(partial: Path, draft: Draft, sequence: int, hook: Hook) -> None:
    hook("checkpoint.before_write")
    write_file(partial / TENSORS_NAME, draft.data, lambda: hook("checkpoint.during_write"))
    text = draft.manifest(sequence).to_bytes()
    hook("checkpoint.before_manifest")
    write_file(partial / MANIFEST_NAME, memoryview(text))
    sync_folder(partial)


def _free_name(folder: Path, global_step: int) -> Path:
    """A step may be saved twice: after a restart, or when the first one turned out to be damaged."""
    names = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    return next(path for path in (folder / f"step-{global_step:08d}{ending}" for ending in names) if not path.exists())


def remove_checkpoint(path: Path, hook: Hook) -> None:
    """Take it away at once, so that nobody meets half of it, then free its space."""
    removed = path.with_name(REMOVED + path.name)
    with suppress(FileNotFoundError):
        shutil.rmtree(removed)
    path.rename(removed)
    hook("checkpoint.during_removal")
    shutil.rmtree(removed)
