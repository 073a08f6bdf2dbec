"""One prepared module as the reduction sees it: its parameters, its bucket layout, its buckets. Runs in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from easyscale.core.errors import RefusedError
from easyscale.train.reduce.bucket import Bucket
from easyscale.train.reduce.layout import DdpOptions, Layout, initial_layout, rebuilt_layout


class ReducedModule:
    """Parameters of a module that required gradients when it was prepared.

    Attributes:
        names: of the parameters.
        numbers: of the parameters in the job: ``first .. first + len(params) - 1``.
        layout: buckets of numbers in the module, None before the first pass.
    """

    def __init__(self, named_params: Sequence[tuple[str, Tensor]], first: int, options: DdpOptions) -> None:
        self.names = [name for name, _ in named_params]
        self.params = [param for _, param in named_params]
        self.first = first
        self.numbers = range(first, first + len(self.params))
        self.layout: Layout | None = None
        self._options = options
        self._reductions = 0
        self._is_final = False
        self._allows_unused = options.find_unused_parameters or options.static_graph
        self._buckets: list[Bucket] = []

    @property
    def is_recording(self) -> bool:
        """Whether the order of the gradients of the next pass decides the layout from then on."""
        return not self._is_final and self._reductions == self._options.passes_before_rebuild - 1

    @property
    def is_static(self) -> bool:
        """Whether the script promised that every step uses the same parameters."""
        return self._options.static_graph

    def order_of(self, arrival: Sequence[int]) -> list[int]:
        """All its parameters as their gradients arrived; behind them, as DDP has it, those whose never do."""
        arrived = [number for number in arrival if number in self.numbers]
        return arrived + [number for number in self.numbers if number not in arrived]

    def decide_layout(self, *, has_unused: bool) -> None:
        """Choose DDP's initial layout, once it is known whether some EST leaves a parameter unused."""
        if self.layout is not None:
            return
        self._allows_unused |= has_unused
        self._is_final = self._allows_unused and not self._options.static_graph
        self.layout = initial_layout(self.params, self._options, may_be_unused=self._allows_unused)

    def refuse_unused(self, number: int) -> None:
        """Called when an EST left a parameter unused in a ring.

        Raises:
            RefusedError: the layout was decided as if that never happened, and DDP's bits depend on it.
        """
        if self._allows_unused or self.layout is None:
            return
        raise RefusedError(
            f"an EST left parameter {self.names[number - self.first]} unused after a first step in which all "
            "parameters were used, and with reduction='ring' DDP's bits depend on knowing that before: give "
            "find_unused_parameters=True to session.prepare, or use reduction='tree'"
        )

    def end_reduction(self, arrival: Sequence[int] | None) -> None:
        """Count a reduction.

        Args:
            arrival: where ``is_recording``, the order in which virtual rank 0's gradients arrived (numbers in the
                job); None if some were not and no static graph was promised, which leaves the layout as it is.
        """
        if self.is_recording:
            self._is_final = True
            if arrival is not None:
                local = [number - self.first for number in arrival]
                self.layout = rebuilt_layout(self.params, self._options, local)
                self._buckets = []
        self._reductions += 1

    def forget_buckets(self) -> None:
        """Make new ones when asked: there are other workers, or a lost one's messages may still arrive in these."""
        self._buckets = []

    def decided(self) -> list[Any]:
        """Everything that further layouts depend on."""
        return [self.layout, self._reductions, self._is_final, self._allows_unused]

    def decide(self, decided: list[Any]) -> None:
        """Take over what ``decided`` gave elsewhere."""
        self.layout, self._reductions, self._is_final, self._allows_unused = decided
        self._buckets = []

    def buckets(self, num_buffers: int, multiple: int) -> list[Bucket]:
        """The buckets of the present layout, made when first asked for."""
        if not self._buckets and self.layout is not None:
            self._buckets = [
                Bucket([self.first + n for n in numbers], [self.params[n] for n in numbers], num_buffers, multiple)
                for numbers in self.layout
            ]
        return self._buckets
