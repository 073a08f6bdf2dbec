"""What a job is: everything that decides its numbers, and nothing about where it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from easyscale.core.errors import RefusedError

Rng = Literal["stepwise", "ddp"]
Reduction = Literal["tree", "ring"]
Stage = Literal["device", "host"]

_ALLOWED = {
    "rng": ("stepwise", "ddp"),
    "reduction": ("tree", "ring"),
    "determinism": ("D0", "D1"),
    "stage": ("device", "host"),
    "backend": ("easyscale", "ddp"),
}


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The virtual world of a job; equal specs give equal bits on every placement.

    Attributes:
        num_ests: number of logical data-parallel workers, fixed for the job's life.
        seed: root of every random number the job draws.
        rng: "stepwise" (an EST's numbers depend on seed, virtual rank, step and pass alone) or "ddp" (streams
            carried from step to step as in a DDP script that calls ``torch.manual_seed(seed + rank)``).
        reduction: "tree" (fixed binary tree over virtual ranks) or "ring" (the order of gloo's ring all-reduce).
        determinism: "D0" or "D1" (paper, section 3.3).
        threads: intra-op threads of every thread that computes. It changes bits, so it belongs to the job.
        stage: where partial gradient sums wait: "device" or "host".
        backend: "easyscale", or "ddp": the same script under plain DistributedDataParallel, one process for each
            virtual rank. That is the reference of ``easyscale verify --against ddp``.
    """

    num_ests: int = 1
    seed: int = 0
    rng: Rng = "stepwise"
    reduction: Reduction = "tree"
    determinism: str = "D1"
    threads: int = 1
    stage: Stage = "device"
    backend: Literal["easyscale", "ddp"] = "easyscale"

    def __post_init__(self) -> None:
        if self.num_ests < 1:
            raise RefusedError(f"num_ests is {self.num_ests}: a job has at least 1 EST")
        if self.threads < 1:
            raise RefusedError(f"threads is {self.threads}: a worker computes with at least 1 thread")
        if not 0 <= self.seed < 2**64:
            raise RefusedError(f"seed is {self.seed}: give an integer from 0 to 2**64 - 1")
        if "D2" in self.determinism:
            raise RefusedError(
                f"determinism {self.determinism!r} was asked for, but D2 (mixed device kinds) is not available in this "
                f"version: use 'D1' and one kind of device"
            )
        for field, allowed in _ALLOWED.items():
            value = getattr(self, field)
            if value not in allowed:
                raise RefusedError(f"{field} is {value!r}: choose one of {', '.join(map(repr, allowed))}")


@dataclass(frozen=True, slots=True)
class ScriptSpec:
    """The user's program as the launcher starts it."""

    path: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchSpec:
    """What a run records beside its result; recording changes no number.

    Attributes:
        digests: hash every tensor after every global step (``easyscale verify``).
        by_all: by every worker, not only by virtual rank 0's: so that no step's hash is lost with a worker, and that
            workers which do not agree are noticed.
        dump_step: write all tensors as they are after this global step to ``dump_path`` and end the run.
    """

    digests: bool = False
    by_all: bool = False
    dump_step: int | None = None
    dump_path: str | None = None


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """Where and when a job writes checkpoints.

    Attributes:
        folder: of all of them.
        every_steps: after so many global steps; 0: not for that reason.
        every_minutes: after so many minutes; 0: not for that reason.
        keep: how many are kept; 0: all.
        resume: go on from the newest one; without it a folder that holds some is refused.
        allow_other_torch: go on from one that another version of torch wrote, with bits that may differ.
        owner: what to call the job when another one wants the folder.
    """

    folder: str
    every_steps: int = 0
    every_minutes: float = 0.0
    keep: int = 3
    resume: bool = False
    allow_other_torch: bool = False
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """A worker fails on purpose at a named point (``train/process/faults.py``).

    Attributes:
        action: "kill" (SIGKILL), "stop" (SIGSTOP: it hangs), "exit" or "term" (SIGTERM).
        step: only in this global step; None: the first time that the point is reached.
        worker_rank: only this worker; None: every one.
        virtual_rank: only the worker that hosts it.
        claim: file that says that it has happened: once in a run.
    """

    point: str
    action: str = "kill"
    step: int | None = None
    worker_rank: int | None = None
    virtual_rank: int | None = None
    claim: str | None = None
