"""What a training script holds. Runs in the worker process.

It gives the script its methods; the numbers are decided in ``turns`` and below. ``opening`` makes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from easyscale.core.digest import combine
from easyscale.core.errors import RefusedError, UsageError
from easyscale.train import runtime
from easyscale.train.elastic.contexts import Contexts
from easyscale.train.elastic.member import Member
from easyscale.train.elastic.mover import Mover
from easyscale.train.elastic.saver import ask_for_checkpoint
from easyscale.train.elastic.state import StateKeeper
from easyscale.train.job import Job, ProcessState
from easyscale.train.loops import Loops
from easyscale.train.prepared import Prepared
from easyscale.train.process import faults
from easyscale.train.reduce.layout import DdpOptions
from easyscale.train.step import Steps
from easyscale.train.totals import Log
from easyscale.train.turns import Turns


class Session:
    """A job, as its training script sees it. Made by ``easyscale.session``."""

    def __init__(self, job: Job, before: ProcessState, observer: runtime.Observer) -> None:
        self._job = job
        self._before = before
        self._turns = job.turns
        self._turns.observer = observer
        self._prepared = Prepared(job, self)
        self._registered: dict[str, Any] = {}
        self._log = Log()
        is_carried = job.spec.rng == "ddp" or job.spec.backend == "ddp"
        self._loops = Loops(job.turns, self._prepared, observer, self._log, job.channel, is_carried=is_carried)
        self._keeper: StateKeeper | None = None
        if job.member is not None and isinstance(job.turns, Turns):
            self._be_elastic(job.turns, job.member, observer)
        faults.locate(lambda: (self.global_step, self._turns.ranks))
        faults.reach("startup.session")
        _now_open(self)

    def _be_elastic(self, turns: Turns, member: Member, observer: runtime.Observer) -> None:
        job, track = self._job, self._loops.track
        contexts = Contexts(turns, is_carried=job.spec.rng == "ddp")
        self._keeper = StateKeeper(job.spec, job.device, self._prepared, self._registered, turns, track, contexts)
        mover = Mover(member, turns, self._keeper, track, self._prepared, contexts, member.on_place)
        self._loops.be_elastic(mover)

        def before_commit() -> None:
            if member.channel is not None:
                observer.passed(self.global_step, self._log.values())
            contexts.tell(member.channel)

        turns.before_commit, turns.after_commit = before_commit, contexts.adopt

    @property
    def num_ests(self) -> int:
        """Number of ESTs: what a DDP script calls the world size. Fixed for the job's life."""
        return self._job.placement.num_ests

    @property
    def virtual_rank(self) -> int:
        """The EST whose turn it is: what a DDP script calls its rank. Outside turns the lowest one hosted here."""
        if self._turns.rank is not None:
            return self._turns.rank
        return min(self._turns.ranks) if self._loops.evaluating is None else self._loops.evaluating

    @property
    def is_main(self) -> bool:
        """Whether this worker hosts virtual rank 0: true on one worker of the job."""
        return 0 in self._turns.ranks and not self._is_behind

    @property
    def _is_behind(self) -> bool:
        """Whether this worker joined a job and its script is not there yet."""
        return self._job.member is not None and self._job.member.is_behind

    @property
    def is_in_turn(self) -> bool:
        """Whether an EST has its turn."""
        return self._turns.rank is not None

    @property
    def sync_gradients(self) -> bool:
        """Whether an update made now acts: always outside turns, in the drop-in form in the last local EST's turn."""
        turns = self._turns
        return turns.rank is None or (turns.is_drop_in and turns.is_last and not turns.must_repeat)

    @property
    def global_step(self) -> int:
        """The global step that runs or comes next, from 0."""
        return self._loops.global_step

    @property
    def running_step(self) -> int:
        """The global step in which an error would be: ``global_step``, unless its loop was just left."""
        return self._loops.running_step

    @property
    def epoch(self) -> int:
        """The epoch that runs, from 0."""
        return self._loops.epoch

    @property
    def device(self) -> torch.device:
        """What this worker computes on."""
        return self._job.device

    @property
    def bytes_sent(self) -> int:
        """Bytes of gradients that this worker has sent so far."""
        if self._job.member is not None:
            return self._job.member.bytes_sent
        return 0 if self._job.channel is None else self._job.channel.gradient_bytes

    @property
    def most_gradient_copies(self) -> int:
        """Gradient copies that this worker held at once, at most."""
        return self._turns.most_gradient_copies

    def prepare(
        self,
        *objects: Any,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        broadcast_buffers: bool = True,
        replace_data_workers: int = 3,
    ) -> Any:
        """Make modules, optimizers, DataLoaders, LR schedulers, GradScalers and AveragedModels elastic.

        Modules and optimizers are returned as they are, with hooks; a ``DataLoader`` comes back as an elastic one.
        The options are those of ``DistributedDataParallel``.

        Args:
            replace_data_workers: how many of a loader's data workers that were killed are replaced, before the next
                one ends the job.

        Returns:
            The objects in the order given; the object itself if there is one.

        Raises:
            RefusedError: an object would not give the bits of DDP.
        """
        self._loops.check()
        if self.is_in_turn:
            raise UsageError("session.prepare was called inside an EST's turn: prepare everything before the loop")
        options = DdpOptions(bucket_cap_mb, find_unused_parameters, static_graph, broadcast_buffers)
        prepared = self._prepared.add(objects, options, self._loops, replace_data_workers)
        return prepared[0] if len(prepared) == 1 else prepared

    def register(self, name: str, obj: Any) -> Any:
        """Keep an object with the job: anything with ``state_dict`` and ``load_state_dict``, or a dict.

        Returns:
            The object.
        """
        has_state = callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None))
        if not isinstance(obj, dict) and not has_state:
            raise RefusedError(
                f"session.register({name!r}, ...) got {type(obj).__name__}: it takes a dict, or an object with "
                "state_dict() and load_state_dict()"
            )
        if name in self._registered:
            raise RefusedError(f"{name!r} is registered already: give each object a name of its own")
        self._registered[name] = obj
        if self._keeper is not None:
            self._keeper.give(name, obj)
        return obj

    def epochs(self, count: int) -> Iterator[int]:
        """Epochs ``0 .. count - 1``; they choose the permutation of prepared loaders, as ``set_epoch`` does."""
        return self._loops.epochs(count)

    def steps(self, source: Any, accumulate: int = 1) -> Steps:
        """Global steps: over a prepared loader once, or a number of them.

        Args:
            source: a prepared loader, or a number of steps (mini-batches are then virtual ranks).
            accumulate: mini-batches of each EST in a step; gradients add up, as in DDP's ``no_sync``.
        """
        return self._loops.steps(source, accumulate)

    def check_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an update whose gradients nobody has averaged (see ``optim``)."""
        self._loops.check_update(optimizer)

    def may_act(self, what: str) -> bool:
        """Whether a gated call acts now (see ``optim``)."""
        if self._turns.rank is None:
            return not self._is_behind
        if not self._turns.is_drop_in:
            raise UsageError(
                f"{what} was called in the inner loop over a step, or after a break out of it, where other ESTs have "
                "not run yet: call it in the outer body of `for step in session.steps(loader):`, after the inner loop"
            )
        self._loops.calls.note(what)
        if not self._turns.is_last:
            return False
        self._turns.finish()
        return not self._turns.must_repeat

    def log(self, **scalars: Any) -> None:
        """File numbers under the EST whose turn it is and the global step, each once.

        Outside turns all workers say the same, so virtual rank 0's worker files it.
        """
        if self.is_in_turn or self._loops.evaluating is not None:
            self._log.file(self.virtual_rank, scalars)
        elif self.is_main:
            self._log.file(0, scalars)

    def sum(self, value: Any) -> Any:
        """Add up a count over all ESTs, with the same result on every placement; every worker must call it.

        Args:
            value: an integer, an integer or boolean tensor, or ``{virtual_rank: number}`` for floating point.

        Returns:
            An ``int``, an integer tensor of the same shape, or a ``float``.
        """
        self._loops.check()
        if self.is_in_turn:
            raise UsageError("session.sum was called inside an EST's turn, where others have not run: call it outside")
        return self._loops.total(value, self.num_ests)

    def save_checkpoint(self) -> None:
        """Write a checkpoint at the end of the global step that runs, or of the next one.

        Raises:
            RefusedError: the job was started without ``--checkpoint-dir``.
        """
        ask_for_checkpoint(None if self._job.member is None else self._job.member.saver)

    def state(self) -> dict[str, Any]:
        """Every parameter, buffer and optimizer value of the job by name, as it is now (not copied)."""
        return self._prepared.state()

    def fingerprint(self) -> dict[str, str]:
        """SHA-256 (hex) of every entry of ``state``."""
        return self._prepared.fingerprint()

    def digest(self) -> str:
        """SHA-256 (hex) over parameters, buffers and optimizer state in a fixed order."""
        self._loops.check()
        return combine(self.fingerprint())

    def finish(self) -> None:
        """The script ended well.

        Raises:
            UsageError: a step was left half-way.
        """
        self._loops.finish()

    def close(self) -> None:
        """Leave the job; the process is as it was before ``easyscale.session``."""
        global _open
        if _open is not self:
            return
        _open = None
        self._loops.close()
        self._turns.abort()
        self._turns.close()
        self._prepared.close()
        if self._job.member is not None:
            self._job.member.close()
        elif self._job.channel is not None:
            self._job.channel.close()
        self._before.restore()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_open: Session | None = None


def _now_open(session: Session) -> None:
    global _open
    _open = session


def current_session() -> Session | None:
    """The session that is open in this process."""
    return _open
