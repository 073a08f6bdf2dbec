"""Gates: methods that act once for each global step, wherever the script calls them. Runs in the worker.

In the drop-in form ``optimizer.step()`` stands in every mini-batch's turn, but only the last local EST's may act, once
the average is complete. A gate replaces a method of one object; its type and its state stay its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

from easyscale.core.errors import UsageError


class GateKeeper(Protocol):
    """Knows whose turn it is."""

    def may_act(self, what: str) -> bool:
        """Whether a call of ``what`` acts now. May complete the average first, or refuse."""


class Gates:
    """All gates of a session."""

    def __init__(self, keeper: GateKeeper) -> None:
        self._keeper = keeper
        self._closed: list[tuple[Any, str, Any]] = []
        self._is_acting = False

    def add(self, target: Any, methods: tuple[str, ...], name: str) -> None:
        """Let ``methods`` of ``target`` act once for each global step.

        Args:
            name: what a message calls the target.
        """
        for method in methods:
            own = vars(target).get(method)
            self._closed.append((target, method, own))
            setattr(target, method, self._gated(getattr(target, method), f"{name}.{method}()"))

    def _gated(self, inner: Callable[..., Any], what: str) -> Callable[..., Any]:
        @functools.wraps(inner)  # with the mark that LR schedulers leave on ``step`` and look for later
        def gated(*args: Any, **kwargs: Any) -> Any:
            if self._is_acting:  # GradScaler.step calls the optimizer's, which the script did not
                return inner(*args, **kwargs)
            if not self._keeper.may_act(what):
                return None
            self._is_acting = True
            try:
                return inner(*args, **kwargs)
            finally:
                self._is_acting = False

        return gated

    def close(self) -> None:
        """Give the objects their own methods back."""
        for target, method, own in reversed(self._closed):
            if own is None:
                delattr(target, method)
            else:
                setattr(target, method, own)
        self._closed.clear()


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
