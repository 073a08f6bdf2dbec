"""Cluster policies: who gets which devices. Pure functions of the cluster's books; cluster scheduler and simulator.

A policy is a generator function ``policy(books)`` that yields ``Decision(record, held)``: from now on that job holds
those devices, all of them. Each decision is checked and in the books when the generator goes on, so it always reads
the state as it is. It is called whenever something has changed and stops when it has nothing more to say. To add one,
write the function
and name it: ``easyscale simulate --policy mymodule:mypolicy``.
"""

from __future__ import annotations

from dataclasses import dataclass

from easyscale.core.errors import RefusedError
from easyscale.schedule.cluster import Policy
from easyscale.schedule.policies import rigid
from easyscale.schedule.policies.easyscale import Rules, easyscale


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy as users choose it.

    Attributes:
        name: what it is called on the command line.
        decide: the function.
        is_elastic: its jobs go on with fewer devices; a job of another policy that loses one waits for a new gang.
    """

    name: str
    decide: Policy
    is_elastic: bool = True


def named(name: str) -> NamedPolicy:
    """The policy that a user means."""
    if name not in POLICIES:
        raise RefusedError(f"no policy is called {name!r}: choose from {', '.join(POLICIES)} or write module:function")
    return POLICIES[name]


POLICIES = {
    policy.name: policy
    for policy in (
        NamedPolicy("easyscale", easyscale(Rules())),
        NamedPolicy("easyscale-homo", easyscale(Rules(preferred_only=True))),
        NamedPolicy("easyscale-short", easyscale(Rules(shortest_first=True))),
        NamedPolicy("fifo", rigid.fifo_gang, is_elastic=False),
        NamedPolicy("backfill", rigid.fifo_backfill, is_elastic=False),
        NamedPolicy("srtf", rigid.shortest_remaining_first, is_elastic=False),
        NamedPolicy("one-at-a-time", rigid.one_at_a_time, is_elastic=False),
    )
}
