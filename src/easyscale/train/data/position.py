"""Where a loader stands: what it keeps for another process to go on, and how that is checked. Runs in the worker.

The position in an epoch is one number, valid for any number of workers and data workers: how many mini-batches of each
EST training has consumed. What data workers have loaded ahead does not count.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch

from easyscale.core.errors import RefusedError, UsageError

VERSION = 1


class Progress:
    """Mini-batches of each local EST that were handed out, in the epoch that runs."""

    def __init__(self, ranks: tuple[int, ...], start: int) -> None:
        self._next_by_rank = dict.fromkeys(ranks, start)

    def note(self, virtual_rank: int, number: int) -> None:
        """Mini-batch ``number`` of ``virtual_rank`` is handed out."""
        self._next_by_rank[virtual_rank] = number + 1

    @property
    def number(self) -> int:
        """Number of the mini-batch that comes next, the same for all ESTs.

        Raises:
            UsageError: some ESTs have had their mini-batch and others have not.
        """
        numbers = set(self._next_by_rank.values())
        if len(numbers) > 1:
            raise UsageError(
                "the position of a loader was asked for in the middle of a global step, where some ESTs have had their "
                "mini-batch and others have not: ask in the outer body of `for step in session.steps(loader):`, or "
                "where session.sync_gradients is true"
            )
        return numbers.pop()


@dataclass(frozen=True, slots=True)
class Position:
    """Where a loader stands.

    Attributes:
        iterations: how many iterations have begun, which is the epoch where nothing else tells it.
        own_epoch: the epoch that ``set_epoch`` chose, if it did.
        epoch: the epoch that runs; None between epochs.
        number: mini-batches of each EST consumed in it.
        sampler: state of a sampler of the user's own before it was drawn for the epoch that runs.
        order: hash of what that sampler gave for this epoch.
        stream: what the stream keeps beside that, by virtual rank.
        facts: what the order depends on, to be the same where the position is used.
    """

    iterations: int
    own_epoch: int | None
    epoch: int | None
    number: int
    sampler: dict[str, Any] | None
    order: str | None
    stream: dict[str, Any]
    facts: dict[str, Any]
    version: int = field(default=VERSION)

    def to_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, state: dict[str, Any], facts: dict[str, Any]) -> Position:
        """Read what ``to_dict`` gave.

        Raises:
            RefusedError: it is not a position, or one in another order of samples.
        """
        names = {f.name for f in dataclasses.fields(cls)}
        if not isinstance(state, dict) or state.get("version") != VERSION or set(state) != names:
            found = state.get("version") if isinstance(state, dict) else type(state).__name__
            raise RefusedError(
                f"this is not a loader's position of version {VERSION} (found {found!r}): give what state_dict() of a "
                "prepared loader returned, in this version of EasyScale"
            )
        for name, mine in facts.items():
            theirs = state["facts"].get(name)
            if theirs != mine:
                raise RefusedError(
                    f"the position was taken from a loader with {name} {theirs!r}, this one has {mine!r}, so its "
                    "mini-batches would be others: build the loader as it was, or start the epoch anew"
                )
        return cls(**state)

    def check_order(self, sampler: Any, order: str | None) -> None:
        """Compare with what the sampler gives now for the epoch that runs.

        Raises:
            RefusedError: it is something else.
        """
        if self.epoch is not None and order != self.order:
            raise RefusedError(
                f"the sampler {type(sampler).__name__} gave another order of samples for epoch {self.epoch} than when "
                "the position was taken: let it draw from a torch.Generator in its attribute `generator`, give it "
                "state_dict() and load_state_dict(), or let it draw from the process's generators, which are set for it"
            )


def sampler_state(sampler: Any) -> dict[str, Any] | None:
    """What the orders that a sampler will give depend on, as far as it can be told."""
    if sampler is None:
        return None
    state: dict[str, Any] = {}
    for name, part in _parts(sampler):
        generator = getattr(part, "generator", None)
        if isinstance(generator, torch.Generator):
            state[f"{name}.generator"] = generator.get_state()
        if callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None)):
            state[f"{name}.state"] = copy.deepcopy(part.state_dict())  # the sampler may go on changing what it gave
    return state


def load_sampler_state(sampler: Any, state: dict[str, Any] | None) -> None:
    """Put a sampler where another one was."""
    if sampler is None or state is None:
        return
    for name, part in _parts(sampler):
        if f"{name}.generator" in state:
            part.generator.set_state(state[f"{name}.generator"])
        if f"{name}.state" in state:
            part.load_state_dict(state[f"{name}.state"])


def _parts(sampler: Any) -> list[tuple[str, Any]]:
    """A sampler, and the one that a batch sampler draws from."""
    inner = getattr(sampler, "sampler", None)
    return [("sampler", sampler)] if inner is None else [("sampler", sampler), ("inner", inner)]
