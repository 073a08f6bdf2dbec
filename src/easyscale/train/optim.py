"""Gates: methods that act once for each global step, wherever the script calls them. Runs in the worker.

In the drop-in form ``optimizer.step()`` stands in every mini-batch's turn, but only the last local EST's may act, once
the average is complete. A gate is put around a method of one object; its state stays its own.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Protocol

import torch

from easyscale.core.errors import UsageError


class GateKeeper(Protocol):
    """Knows whose turn it is."""

    def may_act(self, what: str) -> bool:
        """Whether a call of ``what`` acts now. May complete the average first, or refuse."""

    def check_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an update whose gradients nobody has averaged."""


def check_averaged(optimizer: torch.optim.Optimizer, global_step: int | None, *, has_gradients: bool) -> None:
    """Refuse an update with gradients that did not come from a pass over a global step.

    Args:
        global_step: the one that runs, or None.
        has_gradients: whether an EST ran a backward in it.

    Raises:
        UsageError: nobody has averaged them.
    """
    if all(param.grad is None for group in optimizer.param_groups for param in group["params"]):
        return
    if global_step is None:
        raise UsageError(
            f"{type(optimizer).__name__}.step() was called outside every global step, with gradients that were not "
            f"averaged over ESTs: iterate over session.steps(loader) with the loader that session.prepare returned"
        )
    if not has_gradients:
        raise UsageError(
            f"{type(optimizer).__name__}.step() found gradients, but no EST ran a backward in its turn of global "
            f"step {global_step}, so they were not averaged: call backward() inside `for batch in step:`"
        )


class Gates:
    """All gates of a session."""

    def __init__(self, keeper: GateKeeper) -> None:
        self._keeper = keeper
        self._undo: list[Callable[[], None]] = []
        self._is_acting = False

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Let ``optimizer.step`` act once for each global step.

        The method of this one object is replaced, because that is what LR schedulers do too: one that is built later
        wraps ours.
        """
        own = vars(optimizer).get("step")
        gated = self._gated(optimizer.step, f"{type(optimizer).__name__}.step()")
        optimizer.step = types.MethodType(gated, optimizer)  # type: ignore[method-assign]
        hook = optimizer.register_step_pre_hook(lambda acting, *_: self._keeper.check_update(acting))
        self._undo += [hook.remove, lambda: _put_back(optimizer, "step", own)]

    def add(self, target: Any, methods: tuple[str, ...]) -> None:
        """Let ``methods`` of ``target`` act once for each global step.

        Its class is replaced by one derived from it, so that its attributes, which schedulers save, stay its own.
        """
        kind = type(target)
        body: dict[str, Any] = {name: self._gated_method(kind, name) for name in methods}
        body["__reduce_ex__"] = lambda obj, protocol: _reduce_as(kind, obj, protocol)
        target.__class__ = type(
            kind.__name__, (kind,), {"__module__": kind.__module__, "__doc__": kind.__doc__, **body}
        )
        self._undo.append(lambda: setattr(target, "__class__", kind))

    def _gated_method(self, kind: type[Any], name: str) -> Callable[..., Any]:
        inner = getattr(kind, name)

        @functools.wraps(inner)
        def method(target: Any, *args: Any, **kwargs: Any) -> Any:
            return self._act(f"{kind.__name__}.{name}()", lambda: inner(target, *args, **kwargs))

        return method

    def _gated(self, inner: Callable[..., Any], what: str) -> Callable[..., Any]:
        @functools.wraps(inner)  # with the mark that LR schedulers leave on ``step`` and look for later
        def gated(_: Any, *args: Any, **kwargs: Any) -> Any:
            return self._act(what, lambda: inner(*args, **kwargs))

        return gated

    def _act(self, what: str, call: Callable[[], Any]) -> Any:
        if self._is_acting:  # GradScaler.step calls the optimizer's, which the script did not
            return call()
        if not self._keeper.may_act(what):
            return None
        self._is_acting = True
        try:
            return call()
        finally:
            self._is_acting = False

    def close(self) -> None:
        """Give the objects their own methods back."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()


def _put_back(target: Any, name: str, own: Any) -> None:
    if own is None:
        delattr(target, name)
    else:
        setattr(target, name, own)


def _reduce_as(kind: type[Any], target: Any, protocol: Any) -> Any:
    """Copies and pickles of a gated object are objects of its own class, without gates."""
    constructor, arguments, *rest = super(type(target), target).__reduce_ex__(protocol)
    return (constructor, tuple(kind if item is type(target) else item for item in arguments), *rest)


class StepCalls:
    """Which gated methods each turn of a drop-in step called: all turns must agree, or placements would not."""

    def __init__(self) -> None:
        self._first: list[str] | None = None
        self._now: list[str] = []

    def begin_step(self) -> None:
        self._first = None
        self._now = []

    @property
    def has_any(self) -> bool:
        """Whether the step that runs has called an update."""
        return bool(self._now or self._first)

    def note(self, what: str) -> None:
        self._now.append(what)

    def end_turn(self, virtual_rank: int) -> None:
        """Compare with the first turn of the step.

        Raises:
            UsageError: this turn called others.
        """
        if self._first is None:
            self._first = self._now
        elif self._first != self._now:
            odd = sorted(set(self._first) ^ set(self._now)) or self._now
            raise UsageError(
                f"the turn of virtual rank {virtual_rank} called {', '.join(self._now) or 'no update'}, but the "
                f"first turn of this step called {', '.join(self._first) or 'none'} ({', '.join(odd)} differs): in "
                "the drop-in form every mini-batch of a global step must make the same calls. Counting mini-batches "
                "does not, since a worker runs several of one step: use session.global_step, or "
                "session.steps(loader, accumulate=k)"
            )
        self._now = []
