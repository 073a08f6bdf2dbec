"""Takes the gradients of one EST's turn out of ``.grad``, where the next EST will put its own.

Runs in the worker. In the two-loop form they are taken when the turn ends. In the drop-in form each is taken as it
arrives, so that whatever stands between ``backward`` and ``optimizer.step`` finds ``.grad = None`` in all turns but
the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from easyscale.core.errors import UsageError
from easyscale.train.reduce.staging import Grads

ONE_BACKWARD = (
    "backward() ran a second time for one mini-batch in the drop-in form (`for batch in loader:`), where all "
    "updates of a mini-batch must follow one backward: other ESTs of this step have not run yet. Add up the losses, "
    "or use the two-loop form and pass over the step once for each update:\n"
    "    for step in session.steps(loader):\n"
    "        for batch in step: ...; loss_a.backward()\n"
    "        optimizer_a.step(); optimizer_a.zero_grad()\n"
    "        for batch in step: ...; loss_b.backward()\n"
    "        optimizer_b.step(); optimizer_b.zero_grad()"
)


class Collector:
    """Gradients of the turn that runs.

    Attributes:
        may_repeat: whether a pass may be broken off at any moment, also after ``.grad`` was accumulated onto.
        used: how many local ESTs of this pass used each parameter.
        arrivals: how often the turn that runs accumulated into each parameter; counted where ``is_hooked``.
        on_arrival: called with a parameter's number when the last turn has accumulated into it.
        on_backward_end: called when a backward of the drop-in form ends.
    """

    def __init__(self) -> None:
        self.may_repeat = False
        self._copies: list[tuple[Tensor, Tensor]] = []
        self.params: list[Tensor] = []
        self.used: list[int] = []
        self.arrivals: list[int] = []
        self.order: list[int] | None = None
        self.on_arrival: Callable[[int], None] | None = None
        self.on_backward_end: Callable[[], None] | None = None
        self._handles: dict[int, RemovableHandle] = {}
        self._guards: dict[int, RemovableHandle] = {}
        self._carried: Grads | None = None
        self._started: list[tuple[Tensor, int] | None] = []
        self._taken: Grads = []
        self._takes_on_arrival = False
        self._is_in_backward = False
        self._backwards = 0

    def extend(self, params: list[Tensor]) -> None:
        """Collect from these parameters too."""
        self.set_hooks(False)
        self.params.extend(params)

    def set_hooks(self, wanted: bool) -> None:
        """Listen to single gradients, or (cheaper) do not."""
        if wanted:
            for number, param in enumerate(self.params):
                if number not in self._handles and param.requires_grad:  # the script may have frozen it since
                    self._handles[number] = self._listen(number, param)
            return
        for handle in [*self._handles.values(), *self._guards.values()]:
            handle.remove()
        self._handles.clear()
        self._guards.clear()

    def _listen(self, number: int, param: Tensor) -> RemovableHandle:
        tensor: Any = param
        handle: RemovableHandle = tensor.register_post_accumulate_grad_hook(lambda _: self._arrived(number))
        return handle

    def _protect_kept(self) -> None:
        """From now on let early turns accumulate onto copies of kept gradients.

        Most scripts empty ``.grad`` before a backward, so a copy made before every turn would be made for nothing.
        """
        for number, param in enumerate(self.params):
            if number not in self._guards and param.requires_grad:
                self._guards[number] = self._guard(number, param)

    def _guard(self, number: int, param: Tensor) -> RemovableHandle:
        def before_accumulation(_: Tensor) -> None:
            if self._takes_on_arrival and param.grad is not None and param.grad is self._kept(number):
                param.grad = param.grad.clone()

        handle: RemovableHandle = param.register_hook(before_accumulation)
        return handle

    def refuse_other_hooks(self) -> None:
        """Called in the drop-in form, where gradients are taken as they arrive.

        Raises:
            UsageError: a hook of the script's own would find ``.grad`` empty.
        """
        for number, param in enumerate(self.params):
            hooks: Any = getattr(param, "_post_accumulate_grad_hooks", None)
            if hooks and len(hooks) > (number in self._handles):
                raise UsageError(
                    f"a parameter of shape {tuple(param.shape)} has a hook of the script's own from "
                    f"register_post_accumulate_grad_hook, which the drop-in form cannot serve: use the two-loop form "
                    f"(`for step in session.steps(loader): for batch in step: ...`), or tensor hooks (register_hook)"
                )

    def begin_pass(self) -> None:
        """Note the gradients that the script has kept from before: DDP accumulates onto them, on every rank."""
        kept: Grads = [param.grad for param in self.params]
        self._carried = kept if any(grad is not None for grad in kept) else None
        self.used = [0] * len(self.params)
        self._copies = [(grad, grad.clone()) for grad in kept if grad is not None] if self.may_repeat else []

    def begin_turn(self, *, is_last: bool, is_drop_in: bool) -> None:
        """Let the next EST start from the gradients that were kept."""
        self.arrivals = [0] * len(self.params)
        self._takes_on_arrival = is_drop_in and not is_last
        self._is_in_backward = False
        self._backwards = 0
        if self._takes_on_arrival:
            self._taken = [None] * len(self.params)
        if self._carried is not None:
            self._carry_in(is_last=is_last)

    def _carry_in(self, *, is_last: bool) -> None:
        assert self._carried is not None
        self._started = []
        if self._takes_on_arrival:
            self._protect_kept()
        for param, kept in zip(self.params, self._carried, strict=True):
            param.grad = kept if is_last or kept is None or self._takes_on_arrival else kept.clone()
            self._started.append(None if param.grad is None else (param.grad, param.grad._version))

    def _arrived(self, number: int) -> None:
        if self.on_backward_end is not None and not self._is_in_backward:
            self._begin_backward()
        self.arrivals[number] += 1
        if self.order is not None and self.arrivals[number] == 1:
            self.order.append(number)
        if self._takes_on_arrival:
            self._take(number)
        elif self.on_arrival is not None:
            self.on_arrival(number)

    def _begin_backward(self) -> None:
        self._is_in_backward = True
        self._backwards += 1
        if self._backwards > 1:
            raise UsageError(ONE_BACKWARD)
        torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)

    @property
    def has_run_backward(self) -> bool:
        """Whether the turn that runs had a backward; known in the drop-in form."""
        return self._backwards > 0

    def _backward_ended(self) -> None:
        self._is_in_backward = False
        if self.on_backward_end is not None:
            self.on_backward_end()

    def _take(self, number: int) -> None:
        param, earlier = self.params[number], self._taken[number]
        self._taken[number] = param.grad if earlier is None or param.grad is None else earlier.add_(param.grad)
        param.grad = None

    def end_turn(self) -> None:
        """Count what the turn used. Its gradients are still in place (see ``take``).

        Raises:
            UsageError: in the drop-in form, a backward of the turn broke off.
        """
        if self._is_in_backward and self.on_backward_end is not None:
            raise UsageError(
                "a backward broke off with an error that the script caught, so the gradients of this mini-batch are "
                "incomplete: let the error end the run, or leave the mini-batch out before its backward on every EST"
            )
        for number, param in enumerate(self.params):
            if self._is_used(number, param.grad):
                self.used[number] += 1

    def _is_used(self, number: int, grad: Tensor | None) -> bool:
        if self._takes_on_arrival and self.arrivals[number]:
            return True
        if grad is None:
            return False
        started = self._started[number] if self._carried is not None else None
        return started is None or grad is not started[0] or grad._version != started[1]

    def take(self) -> Grads:
        """The gradients of the turn that ended, moved out of ``.grad``."""
        grads = [self._own(number, param.grad) for number, param in enumerate(self.params)]
        self._taken = []
        for param in self.params:
            param.grad = None
        return grads

    def _own(self, number: int, grad: Tensor | None) -> Tensor | None:
        """The turn's gradient as a tensor that may be added to: no kept one, no part of a graph."""
        if self._takes_on_arrival:
            if self._taken[number] is not None:
                grad = self._taken[number]
            elif grad is not None and grad is self._kept(number):
                return grad.clone()
        return grad.detach() if grad is not None and grad.requires_grad else grad

    def _kept(self, number: int) -> Tensor | None:
        return None if self._carried is None else self._carried[number]

    def live(self, numbers: tuple[int, ...]) -> Grads:
        """The gradients in place of some parameters."""
        return [self.params[number].grad for number in numbers]

    def put_back(self) -> None:
        """Give ``.grad`` what it held before the pass."""
        with torch.no_grad():
            for kept, copy in self._copies:
                kept.copy_(copy)
        for number, param in enumerate(self.params):
            param.grad = self._kept(number)
