"""Opens a job in this process: what was asked for, where it runs, and the parts that run it. Runs in the worker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from easyscale.core.errors import RefusedError
from easyscale.core.job import JobSpec
from easyscale.core.placement import Placement
from easyscale.train.checkpoint.state import JobFacts, JobState, device_kind
from easyscale.train.context.rng import Carried, RngPolicy, Seeder, Stepwise, capture, restore, seed_all
from easyscale.train.ddp import PlainTurns
from easyscale.train.elastic.links import Links
from easyscale.train.elastic.member import Member
from easyscale.train.elastic.standing import Seat
from easyscale.train.reduce.channel import Channel, join_group
from easyscale.train.reduce.staging import DeviceShelf, HostShelf, Shelf
from easyscale.train.reduce.sync import GradientSync
from easyscale.train.runtime import Enrolment, WorkerContext
from easyscale.train.settings import Settings, allow_deterministic_cublas
from easyscale.train.turns import Turns


@dataclass(frozen=True, slots=True)
class Job:
    """A job as this process runs it.

    Attributes:
        spec: what decides its numbers.
        placement: where its ESTs run.
        worker_rank: this worker.
        device: what it computes on.
        channel: to the other workers; None if there are none.
        turns: runs the ESTs.
        member: this worker's part in a job whose membership may change; None if it never does. Then ``placement``
            and ``channel`` are those of the beginning.
        may_move: whether ESTs may come to other workers, or to a checkpoint.
    """

    spec: JobSpec
    placement: Placement
    worker_rank: int
    device: torch.device
    channel: Channel | None
    turns: Turns | PlainTurns
    member: Member | None
    may_move: bool


def open_job(context: WorkerContext, asked: Mapping[str, Any], device: str | None) -> Job:
    """Open the job that the script asks for (None: not said), where the launcher's word wins.

    Raises:
        RefusedError: what was asked for does not exist or does not fit together.
    """
    said = {key: value for key, value in asked.items() if value is not None}
    num_ests = _number_of_ests(context, said.pop("num_ests", None))
    spec = JobSpec(num_ests=num_ests, **{**said, **{k: v for k, v in context.overrides.items() if k != "num_ests"}})
    enrolment = context.enrolment if spec.backend == "easyscale" else None
    is_joiner = enrolment is not None and enrolment.is_joiner
    # a joiner has no place yet: as little as any worker may have, and not virtual rank 0 if that can be
    placement = Placement.even(num_ests, num_ests) if is_joiner else _placement(context, num_ests)
    worker = num_ests - 1 if is_joiner else context.worker_rank
    chosen = _device(device, context)
    Settings.for_job(spec.threads).apply()
    seed_all(spec.seed, chosen)
    store = None if is_joiner else _store(context)
    channel = None
    if store is not None:
        channel = _channel(store, placement.num_workers, chosen, spec.threads, context, enrolment is not None)
        channel.open()
    if spec.backend == "ddp":
        plain = _plain(spec, placement, worker, store, chosen)
        return Job(spec, placement, worker, chosen, channel, plain, None, context.may_move)
    member = None
    if enrolment is not None:
        seat = None if is_joiner else Seat(0, placement, worker, channel)
        begin = None if is_joiner else _begin(enrolment, spec, chosen, channel)
        member = Member(enrolment, Links(chosen, spec.threads, channel, 0), seat, begin)
    shelf: Shelf = HostShelf(chosen) if spec.stage == "host" else DeviceShelf()
    sync = GradientSync(placement, worker, spec.reduction, channel, shelf, member)
    # where ESTs may come from elsewhere, all of their streams are begun here too
    carried = placement.ranks_by_worker[worker] if member is None else tuple(range(num_ests))
    turns = Turns(placement, worker, _rng(spec, carried, chosen), sync, channel, member)
    return Job(spec, placement, worker, chosen, channel, turns, member, context.may_move)


def _begin(enrolment: Enrolment, spec: JobSpec, device: torch.device, channel: Channel | None) -> JobState | None:
    """The state that the job begins from, if that is not its start; the same on all workers."""
    if enrolment.saver is None:
        return None
    found = enrolment.saver.resume(JobFacts.of(spec, device_kind(device)))
    name = "none" if found is None else f"{found.path.name} of step {found.state.global_step}"
    names = [name] if channel is None else channel.call(lambda: channel.gather_bytes(name.encode()))
    if len(set(names)) > 1:
        raise RefusedError(f"workers found different checkpoints ({names}): let no other job write into the folder")
    return None if found is None else found.state


def _placement(context: WorkerContext, num_ests: int) -> Placement:
    return context.placement or Placement.even(num_ests, context.num_workers)


def _channel(
    store: dist.Store, size: int, device: torch.device, threads: int, context: WorkerContext, is_elastic: bool
) -> Channel:
    meeting, rank = dist.PrefixStore("easyscale", store), context.worker_rank

    def connect() -> Any:
        return join_group(meeting, rank, size, device, is_local=_is_local(context))

    return Channel(connect, rank, size, device, threads, is_elastic=is_elastic)


def _number_of_ests(context: WorkerContext, asked: int | None) -> int:
    if context.placement is None:
        return context.num_workers if asked is None else asked
    started = context.placement.num_ests
    if asked is not None and asked != started and not context.is_num_ests_explicit:
        raise RefusedError(
            f"the script asks for num_ests={asked}, but the launcher was told no number of ESTs and started {started}: "
            f"give --ests {asked} to easyscale run"
        )
    return started


def _rng(spec: JobSpec, ranks: tuple[int, ...], device: torch.device) -> RngPolicy:
    if spec.rng == "ddp":
        return Carried(spec.seed, ranks, device)
    return Stepwise(Seeder(spec.seed, device))


def _device(asked: str | None, context: WorkerContext) -> torch.device:
    if asked is not None and torch.device(asked).type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if asked is not None:
            raise RefusedError(f"device {asked!r} was asked for, but this worker finds no CUDA device: use 'cpu'")
        return torch.device("cpu")
    available = torch.cuda.device_count()
    local = int(os.environ.get("LOCAL_RANK", context.worker_rank))
    if local >= available:
        raise RefusedError(
            f"worker {context.worker_rank} needs a GPU of its own, but there are {available}: start fewer workers, "
            "each can run several ESTs"
        )
    allow_deterministic_cublas()
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _is_local(context: WorkerContext) -> bool:
    return context.store_path is not None or os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def _store(context: WorkerContext) -> dist.Store | None:
    """Where workers meet: the launcher's file, or what torchrun's environment says."""
    if context.store_path is not None:
        return dist.FileStore(context.store_path, context.num_workers) if context.num_workers > 1 else None
    if context.num_workers == 1:
        return None
    store: dist.Store = next(dist.rendezvous("env://"))[0]
    return store


def _plain(
    spec: JobSpec, placement: Placement, worker: int, store: dist.Store | None, device: torch.device
) -> PlainTurns:
    if placement != Placement.even(spec.num_ests, spec.num_ests):
        raise RefusedError(
            f"plain DDP runs virtual rank r in process r, which placement {placement} does not: give no placement"
        )
    meeting = dist.HashStore() if store is None else dist.PrefixStore("ddp", store)
    return PlainTurns(placement.ranks_by_worker[worker][0], spec.num_ests, spec.seed, meeting, device)


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What a session changes in its process, as it was before."""

    settings: Settings
    generators: Any
    device: torch.device

    @classmethod
    def current(cls) -> ProcessState:
        cpu = torch.device("cpu")
        return cls(Settings.current(), capture(cpu), cpu)

    def restore(self) -> None:
        self.settings.apply()
        restore(self.generators, self.device)
