"""What a checkpoint holds, and what is said of one: values without behaviour. Runs in the worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from easyscale.core.job import JobSpec


def device_kind(device: torch.device) -> str:
    """What a device is called where it decides bits: "cpu", or a GPU's name."""
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What must be the same for a job to go on with equal bits. The first six are those of ``JobSpec``.

    Attributes:
        device_kind: "cpu", or a GPU's name.
        bucket_layout: which parameters travel together, as lists of numbers; None: not decided yet.
        torch_version: of the torch that computes.
    """

    num_ests: int
    seed: int
    rng: str = "stepwise"
    reduction: str = "tree"
    determinism: str = "D1"
    threads: int = 1
    device_kind: str = "cpu"
    bucket_layout: Any = None
    torch_version: str = str(torch.__version__)

    @classmethod
    def of(cls, spec: JobSpec, device_kind: str = "cpu", bucket_layout: Any = None) -> JobFacts:
        """The facts of a job that runs in this process."""
        virtual = (spec.num_ests, spec.seed, spec.rng, spec.reduction, spec.determinism, spec.threads)
        return cls(*virtual, device_kind, bucket_layout)


@dataclass(frozen=True, slots=True)
class JobState:
    """A job between two global steps, wherever its ESTs run.

    Attributes:
        facts: what the job is.
        global_step: steps that are done.
        tensors: parameters, buffers and optimizer state by name; only the values count.
        meta: everything else, of any type that ``encode`` keeps: EST contexts, loader positions, registered objects.
    """

    facts: JobFacts
    global_step: int
    tensors: Mapping[str, Tensor]
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that was read, every byte of it checked.

    Attributes:
        path: its folder.
        state: what it holds, on the CPU.
        versions: of torch, easyscale and python that wrote it.
        sha256_by_name: of the bytes of every stored tensor; two checkpoints with equal ones are equal.
    """

    path: Path
    state: JobState
    versions: Mapping[str, str]
    sha256_by_name: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something in a checkpoint folder that cannot be used, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path} was passed over: {self.reason}"


@dataclass(frozen=True, slots=True)
class Found:
    """The newest whole checkpoint of a folder, and what had to be passed over to find it."""

    checkpoint: Checkpoint
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True, slots=True)
class SaveResult:
    """What became of one save.

    Attributes:
        path: the checkpoint's folder, or None if there is none.
        reason: why there is none, or what else went wrong, as a sentence; None if all is well.
        stalled_s: how long the caller waited for its state to be copied.
        written_s: from then until the checkpoint was safe on disk.
        num_bytes: size of its tensors.
    """

    global_step: int
    path: Path | None
    reason: str | None = None
    stalled_s: float = 0.0
    written_s: float = 0.0
    num_bytes: int = 0

    @property
    def is_saved(self) -> bool:
        return self.path is not None
