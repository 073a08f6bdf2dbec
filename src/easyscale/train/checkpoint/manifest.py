"""``manifest.json``: what a checkpoint is, and the sums by which it is checked. Runs in the worker.

Its first line names the format, the place in the order of saves, and the SHA-256 of all that follows, so that it says
itself whether it is whole. It is written last: a checkpoint without its manifest does not exist.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from easyscale.train.checkpoint.blocks import TensorEntry
from easyscale.train.checkpoint.state import JobFacts

MANIFEST_NAME = "manifest.json"
TENSORS_NAME = "tensors.safetensors"
FORMAT_VERSION = 1

_FIRST_LINE = re.compile(
    rb'\{"easyscale_checkpoint": (?P<version>\d{1,18}), "sequence": (?P<sequence>\d{1,18}), '
    rb'"sha256": "(?P<sha256>[0-9a-f]{64})",\n'
)


class DamagedError(Exception):
    """A checkpoint that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """Where a block's bytes are in the file, and their SHA-256."""

    begin: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of a checkpoint but the bytes of its tensors.

    Attributes:
        sequence: counts the saves of a folder; the newest has the highest.
        facts: what the job is.
        structure: the job's state as ``encode`` wrote it, referring to tensors by name.
        file_bytes: size of the tensors' file.
        piece_bytes: that many bytes of the file have one of the ``sums``.
    """

    sequence: int
    global_step: int
    facts: JobFacts
    versions: Mapping[str, str]
    structure: Any
    block_by_name: Mapping[str, StoredBlock]
    entry_by_name: Mapping[str, TensorEntry]
    file_bytes: int
    piece_bytes: int
    sums: list[str]

    def to_bytes(self) -> bytes:
        """The file, of which every byte counts."""
        body = {
            "global_step": self.global_step,
            "job": asdict(self.facts),
            "versions": dict(self.versions),
            "state": self.structure,
            "tensors": {name: _without_none(asdict(entry)) for name, entry in self.entry_by_name.items()},
            "blocks": {name: asdict(block) for name, block in self.block_by_name.items()},
            "file": {
                "name": TENSORS_NAME,
                "num_bytes": self.file_bytes,
                "piece_bytes": self.piece_bytes,
                "sums": self.sums,
            },
        }
        rest = json.dumps(body, allow_nan=False)[1:].encode() + b"\n"
        digest = hashlib.sha256(_salt(self.sequence) + rest).hexdigest()
        first = f'{{"easyscale_checkpoint": {FORMAT_VERSION}, "sequence": {self.sequence}, "sha256": "{digest}",\n'
        return first.encode() + rest

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read a manifest.

        Raises:
            DamagedError: it is none, of another version, or not as it was written.
        """
        first = _first_line(data)
        if int(first["version"]) != FORMAT_VERSION:
            raise DamagedError(
                f"it has format version {int(first['version'])}, and this version of EasyScale reads {FORMAT_VERSION}"
            )
        rest = data[first.end() :]
        if hashlib.sha256(_salt(int(first["sequence"])) + rest).hexdigest().encode() != first["sha256"]:
            raise DamagedError(f"{MANIFEST_NAME} is not as it was written (its SHA-256 differs)")
        if first[0] != _canonical(first):
            raise DamagedError(f"{MANIFEST_NAME} is not as it was written (its first line differs)")
        return cls._from_body(int(first["sequence"]), json.loads(b"{" + rest))

    @classmethod
    def _from_body(cls, sequence: int, body: dict[str, Any]) -> Manifest:
        known = {field.name for field in fields(JobFacts)}
        if set(body["job"]) != known:
            raise DamagedError(f"it describes a job by {sorted(body['job'])}, and this EasyScale by {sorted(known)}")
        return cls(
            sequence=sequence,
            global_step=body["global_step"],
            facts=JobFacts(**body["job"]),
            versions=body["versions"],
            structure=body["state"],
            block_by_name={name: StoredBlock(**block) for name, block in body["blocks"].items()},
            entry_by_name={name: TensorEntry(**entry) for name, entry in body["tensors"].items()},
            file_bytes=body["file"]["num_bytes"],
            piece_bytes=body["file"]["piece_bytes"],
            sums=body["file"]["sums"],
        )


def sequence_of(data: bytes) -> int:
    """The place in the order of saves, of a manifest that is not checked yet.

    Raises:
        DamagedError: it is no manifest.
    """
    return int(_first_line(data)["sequence"])


def versions_now() -> dict[str, str]:
    """What computes in this process."""
    return {
        "torch": torch.__version__,
        "easyscale": importlib.metadata.version("easyscale-torch"),
        "python": platform.python_version(),
    }


def _first_line(data: bytes) -> re.Match[bytes]:
    found = _FIRST_LINE.match(data)
    if found is None:
        raise DamagedError(f"{MANIFEST_NAME} does not begin as a checkpoint's does")
    return found


def _canonical(first: re.Match[bytes]) -> bytes:
    """A number has one spelling: without it, a digit could be added that changes nothing."""
    version, sequence = int(first["version"]), int(first["sequence"])
    sha256 = first["sha256"].decode()
    return f'{{"easyscale_checkpoint": {version}, "sequence": {sequence}, "sha256": "{sha256}",\n'.encode()


def _salt(sequence: int) -> bytes:
    return f"{FORMAT_VERSION}/{sequence}\n".encode()


def _without_none(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if value is not None}
