"""Averages gradients bucket by bucket over workers, while the last EST's backward still runs.

Runs in the worker. What a first pass shows (which parameters take part, in which order their gradients arrive, how
often a turn accumulates into each) is used from then on. A worker that sees something else says so in a flag that rides
on the last bucket, and so does one that is ready for another membership. Only then all workers compare notes and redo
what was wrong: while nothing differs, no message more than DDP's is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from easyscale.train.reduce.agreement import Agreement, Votes, agree, exchange_flag, flag_of, read_flag
from easyscale.train.reduce.bucket import Bucket
from easyscale.train.reduce.channel import Channel, Job
from easyscale.train.reduce.collector import Collector
from easyscale.train.reduce.module import ReducedModule
from easyscale.train.reduce.overlap import Overlap
from easyscale.train.reduce.staging import Staging
from easyscale.train.reduce.transport import RingTransport, Transport


@dataclass(frozen=True, slots=True)
class _Plan:
    """What was learned of a pass: the modules are the same on every worker, the counts are this worker's."""

    modules: tuple[ReducedModule, ...]
    total_used: tuple[int, ...]
    local_used: tuple[int, ...]
    last_arrivals: tuple[int, ...]


class BucketedReduction:
    """The reduction over several workers (or, for the ring, also over one).

    Args:
        root: the worker that hosts virtual rank 0.
        modules: all prepared modules, in the order of ``prepare``; it may grow.
        votes: whether workers are ready to change the membership.
    """

    def __init__(
        self,
        num_ests: int,
        root: int,
        channel: Channel | None,
        transport: Transport,
        collector: Collector,
        staging: Staging,
        modules: list[ReducedModule],
        votes: Votes,
    ) -> None:
        self._votes = votes
        self._num_ests = num_ests
        self._root = root
        self._channel = channel
        self._transport = transport
        self._is_ring = isinstance(transport, RingTransport)
        self._collector = collector
        self._staging = staging
        self._modules = modules
        self._plans: dict[int, _Plan] = {}
        self._jobs: list[Job] = []
        self._sent: list[tuple[int, Tensor | None, int]] = []
        self._overlap = Overlap([], ())
        self._last_rank = 0

    def forget(self) -> None:
        """Learn anew: the modules have changed."""
        self._plans.clear()

    def begin_last_turn(self, pass_index: int, last_rank: int) -> None:
        """From here on buckets go as soon as their gradients arrive, if it is known what to wait for."""
        self._last_rank = last_rank
        self._jobs = []
        plan = self._plans.get(pass_index)
        self._overlap = Overlap([], ())
        self._sent.clear()
        self._collector.on_arrival = None
        if plan is not None:
            buckets = [bucket for module in plan.modules for bucket in self._buckets(module)]
            self._overlap = Overlap(buckets, plan.last_arrivals)
            self._collector.on_arrival = self._on_arrival

    def _on_arrival(self, number: int) -> None:
        for bucket in self._overlap.arrived(number, self._collector.arrivals[number]):
            self._send(bucket)
            for sent in bucket.numbers:
                grad = self._collector.params[sent].grad
                self._sent.append((sent, grad, -1 if grad is None else grad._version))

    def finish(self, pass_index: int, arrival: Sequence[int]) -> bool:
        """All local ESTs are done: complete the average and put it into ``.grad``.

        Args:
            arrival: parameters in the order in which virtual rank 0's gradients arrived, if they were listened to.

        Returns:
            Whether some EST of the job had gradients.
        """
        self._find_changed()
        plan = self._plans.get(pass_index)
        used = tuple(self._collector.used)
        if plan is None:
            agreement = agree(self._channel, used, (), self._votes)
            modules = self._reduce_all(agreement)
            total = agreement.used
        elif self._finish_planned(is_odd=used != plan.local_used or bool(self._overlap.late)):
            agreement = agree(self._channel, used, self._overlap.late, self._votes)
            modules = self._redo(plan.modules, agreement)
            total = agreement.used
        else:
            modules, total = plan.modules, plan.total_used
        self._plans[pass_index] = _Plan(modules, total, used, tuple(self._collector.arrivals))
        self._write_back(modules, total)
        self._end_reductions(modules, total, arrival)
        return any(total)

    def _find_changed(self) -> None:
        """What the script changed in ``.grad`` after its bucket was sent (clipping, a hook of its own) is sent
        again.
        """
        for number, grad, version in self._sent:
            now = self._collector.params[number].grad
            if now is not grad or (now is not None and now._version != version):
                self._overlap.late.add(number)
        self._sent.clear()

    # --- the three ways a pass can end ---

    def _reduce_all(self, agreement: Agreement) -> tuple[ReducedModule, ...]:
        """A pass never seen: reduce every module that an EST used."""
        modules = tuple(m for m in self._modules if any(agreement.used[number] for number in m.numbers))
        for module in modules:
            self._settle(module, agreement)
            self._reduce(self._buckets(module))
        return modules

    def _finish_planned(self, *, is_odd: bool) -> bool:
        """A pass as learned: send the rest and wait for all. Whether any worker saw something unexpected."""
        for bucket in self._overlap.rest():
            self._send(bucket, flag=flag_of(is_odd, self._votes))
        self._wait()
        if self._channel is None:
            return is_odd
        if self._is_ring or not self._overlap.buckets:  # a ring's chunks leave no room for a flag
            return exchange_flag(self._channel, is_odd, self._votes)
        return read_flag(float(self._overlap.buckets[-1].flag.item()), self._votes)

    def _redo(self, planned: Iterable[ReducedModule], agreement: Agreement) -> tuple[ReducedModule, ...]:
        """A pass unlike the one learned: reduce again what some worker sent too early, and what nobody expected."""
        known = tuple(planned)
        for module in known:
            self._settle(module, agreement)
            self._reduce([b for b in self._buckets(module) if agreement.late.intersection(b.numbers)])
        new = [m for m in self._modules if m not in known and any(agreement.used[number] for number in m.numbers)]
        for module in new:
            self._settle(module, agreement)
            self._reduce(self._buckets(module))
        return tuple(m for m in self._modules if m in known or m in new)

    # --- buckets ---

    def _settle(self, module: ReducedModule, agreement: Agreement) -> None:
        unused = [number for number in module.numbers if agreement.used[number] < self._num_ests]
        if unused and self._is_ring and any(agreement.used[number] for number in module.numbers):
            module.refuse_unused(unused[0])
        module.decide_layout(has_unused=bool(unused))

    def _buckets(self, module: ReducedModule) -> list[Bucket]:
        workers = 1 if self._channel is None else self._channel.size
        return module.buckets(len(self._transport.nodes), workers)

    def _reduce(self, buckets: Iterable[Bucket]) -> None:
        for bucket in buckets:
            self._send(bucket)
        self._wait()

    @torch.no_grad()
    def _send(self, bucket: Bucket, *, flag: float = 0.0) -> None:
        self._fill(bucket)
        bucket.flag.fill_(flag)
        transport, buffers, elements = self._transport, bucket.buffers, bucket.elements
        if self._channel is None:
            transport.reduce(buffers, elements)
        else:
            self._jobs.append(self._channel.submit(lambda: transport.reduce(buffers, elements)))

    def _fill(self, bucket: Bucket) -> None:
        live_node, siblings = self._staging.merges(self._last_rank)
        for which, node in enumerate(self._transport.nodes):
            is_live = node == live_node
            grads = self._collector.live(bucket.numbers) if is_live else self._staging.get(node, bucket.numbers)
            if self._is_ring:
                bucket.fill_scaled(which, grads, 1.0 / self._num_ests)
                continue
            bucket.fill(which, grads)
            for sibling in siblings if is_live else ():
                bucket.add(which, self._staging.get(sibling, bucket.numbers))

    def _wait(self) -> None:
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job.wait()

    def _write_back(self, modules: Iterable[ReducedModule], total_used: Sequence[int]) -> None:
        """Put averages into ``.grad``; a parameter that no EST of the job used keeps what it had, as in DDP."""
        params = self._collector.params
        # a ring adds what is divided already; a tree's sum is divided on its way back, in the same pass over memory
        scale = 1.0 if self._is_ring else 1.0 / self._num_ests
        for bucket in (bucket for module in modules for bucket in self._buckets(module)):
            for number, view in zip(bucket.numbers, bucket.views[0], strict=True):
                grad = params[number].grad
                if not total_used[number]:
                    continue
                if grad is None:
                    params[number].grad = view * scale
                else:
                    torch.mul(view, scale, out=grad.detach())

    def _end_reductions(
        self, modules: Iterable[ReducedModule], total_used: Sequence[int], arrival: Sequence[int]
    ) -> None:
        for module in modules:
            order = None
            is_all_used = all(total_used[number] == self._num_ests for number in module.numbers)
            if module.is_recording and (is_all_used or module.is_static):
                order = self._from_root(module.order_of(arrival), len(module.numbers))
            module.end_reduction(order)

    def _from_root(self, order: list[int], length: int) -> list[int]:
        """Virtual rank 0's order, which only its worker has seen."""
        if self._channel is None:
            return order
        channel, root = self._channel, self._root
        message = torch.zeros(length, dtype=torch.int64, device=channel.device)
        if channel.rank == root:
            message.copy_(torch.tensor(order, dtype=torch.int64))
        channel.broadcast([message], root)
        return [int(number) for number in message.tolist()]
