"""Averages gradients over all ESTs of the job, with the bits of the virtual world, once for each pass over a step.

Runs in the worker. ``begin_turn`` and ``end_turn`` stand around every local EST's mini-batch; for the last one
``finish`` stands in the place of ``end_turn``, after which ``.grad`` holds the average as after DDP's backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from easyscale.core.errors import UsageError
from easyscale.core.placement import Placement
from easyscale.train.reduce.agreement import NoVotes, Votes
from easyscale.train.reduce.bucketed import BucketedReduction
from easyscale.train.reduce.channel import Channel
from easyscale.train.reduce.collector import Collector
from easyscale.train.reduce.layout import DdpOptions
from easyscale.train.reduce.module import ReducedModule
from easyscale.train.reduce.staging import Shelf, Staging
from easyscale.train.reduce.transport import choose_transport


class GradientSync:
    """The reduction of one job, as this worker takes part in it.

    Args:
        placement: which ESTs run where.
        worker_rank: this worker.
        reduction: "tree" or "ring".
        channel: to the other workers; None if there are none.
        shelf: where sums wait (``--stage``).
        votes: whether workers are ready to change the membership.

    Attributes:
        most_copies: gradient copies that existed at once, at most.
    """

    def __init__(
        self,
        placement: Placement,
        worker_rank: int,
        reduction: str,
        channel: Channel | None,
        shelf: Shelf,
        votes: Votes | None = None,
    ) -> None:
        self._num_ests = placement.num_ests
        self._reduction = reduction
        self._votes = votes or NoVotes()
        self._collector = Collector()
        self._staging = Staging(placement.num_ests, is_tree=reduction == "tree", shelf=shelf)
        self._modules: list[ReducedModule] = []
        self._frozen: list[tuple[str, Tensor]] = []
        self.move(placement, worker_rank, channel, may_repeat=channel is not None and votes is not None)
        self._rank = 0
        self._pass_index = 0
        self._is_drop_in = False
        self._is_finished = True
        self._arrival: list[int] = []
        self.most_copies = 0
        self.has_gradients = False

    def move(self, placement: Placement, worker_rank: int, channel: Channel | None, *, may_repeat: bool) -> None:
        """From the next pass on this worker has another place. What was learned of passes is forgotten by all."""
        self._collector.may_repeat = may_repeat
        self._ranks = placement.ranks_by_worker[worker_rank]
        self._needs_hooks = channel is not None
        self._bucketed: BucketedReduction | None = None
        for module in self._modules:
            module.forget_buckets()
        if channel is None and self._reduction == "tree":
            return
        transport = choose_transport(placement, worker_rank, self._reduction, channel)
        self._bucketed = BucketedReduction(
            self._num_ests,
            placement.worker_of(0),
            channel,
            transport,
            self._collector,
            self._staging,
            self._modules,
            self._votes,
        )

    def layouts(self) -> list[Any]:
        """How far each module is in deciding its buckets: the same for all workers, whoever joins."""
        return [module.decided() for module in self._modules]

    def set_layouts(self, decided: list[Any]) -> None:
        """Go on where other workers are."""
        for module, own in zip(self._modules, decided, strict=True):
            module.decide(own)

    def add_module(self, named_params: Sequence[tuple[str, Tensor]], options: DdpOptions) -> None:
        """Reduce the gradients of a module too."""
        trained = [(name, param) for name, param in named_params if param.requires_grad]
        self._frozen += [(name, param) for name, param in named_params if not param.requires_grad]
        self._modules.append(ReducedModule(trained, len(self._collector.params), options))
        self._collector.extend([param for _, param in trained])
        if self._bucketed is not None:
            self._bucketed.forget()

    @property
    def has_run_backward(self) -> bool:
        """Whether the turn that runs had a backward; known in the drop-in form."""
        return self._collector.has_run_backward

    def begin_pass(self, pass_index: int, on_backward_end: Callable[[], None] | None) -> None:
        """A pass over a step begins.

        Args:
            pass_index: 0 for the first pass over a step, 1 for the second, ...
            on_backward_end: in the drop-in form, called when a turn's backward ends; None in the two-loop form.
        """
        self._pass_index = pass_index
        self._is_drop_in = on_backward_end is not None
        self._is_finished = False
        self._arrival = []
        self._staging.clear()
        is_recording = self._bucketed is not None and any(module.is_recording for module in self._modules)
        self._collector.set_hooks(self._needs_hooks or self._is_drop_in or is_recording)
        self._collector.on_backward_end = on_backward_end
        if self._is_drop_in:
            self._collector.refuse_other_hooks()
        self._collector.begin_pass()

    def begin_turn(self, virtual_rank: int) -> None:
        """The turn of a local EST begins."""
        self._rank = virtual_rank
        is_last = virtual_rank == self._ranks[-1]
        self._collector.order = self._arrival if virtual_rank == 0 else None
        if is_last and self._bucketed is not None:
            self._bucketed.begin_last_turn(self._pass_index, virtual_rank)
        self.most_copies = max(self.most_copies, self._staging.copies + 1)
        self._collector.begin_turn(is_last=is_last, is_drop_in=self._is_drop_in)

    @torch.no_grad()
    def end_turn(self) -> None:
        """The turn of an EST ends that is not the last one of this worker."""
        self._collector.end_turn()
        self._staging.push(self._rank, self._collector.take())

    @torch.no_grad()
    def finish(self) -> None:
        """Complete the average: ``.grad`` holds it, on every worker."""
        if self._is_finished:
            return
        self._collector.on_arrival = None
        self._collector.end_turn()
        self._check_frozen()
        if self._bucketed is not None:
            self.has_gradients = self._bucketed.finish(self._pass_index, self._arrival)
        else:
            self._finish_here()
            self.has_gradients = any(self._collector.used)
        self._staging.clear()
        self._is_finished = True

    def abort(self) -> None:
        """The pass does not count: ``.grad`` is as before it."""
        self._is_finished = True
        self._collector.on_arrival = None
        self._staging.clear()
        self._collector.put_back()

    def close(self) -> None:
        """Leave the parameters without hooks."""
        self._collector.set_hooks(False)

    def _finish_here(self) -> None:
        """One worker adds up a tree: the sum is complete with the last EST's gradients."""
        collector = self._collector
        total = self._staging.complete(self._rank, collector.take(), collector.used, 1.0 / self._num_ests)
        for param, grad in zip(collector.params, total, strict=True):
            param.grad = grad

    def _check_frozen(self) -> None:
        for name, param in self._frozen:
            if param.grad is not None and param.requires_grad:
                raise UsageError(
                    f"parameter {name} did not require gradients when its model was prepared, but got one now: set "
                    f"requires_grad before session.prepare, and freeze later what shall not train yet"
                )
