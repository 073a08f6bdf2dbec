"""What a running job answers to other commands: how it stands, and whether it will rescale. Runs in the launcher."""

from __future__ import annotations

import time
from typing import Any

from easyscale.core.errors import RefusedError
from easyscale.core.placement import Placement
from easyscale.launch.master import Master


def answer(request: dict[str, Any], master: Master, *, knows_ests: bool) -> dict[str, Any]:
    """The answer to one request.

    Args:
        knows_ests: whether the number of ESTs is certain: the user gave it, or the script has opened its session.

    Raises:
        RefusedError: it is nothing that can be asked, or the job says no.
    """
    if request["ask"] == "status":
        return _status(master, knows_ests=knows_ests)
    if request["ask"] != "scale":
        raise RefusedError(f"{request['ask']!r} is nothing that this version can be asked for")
    if not knows_ests:
        raise RefusedError("the script has not said yet how many ESTs it has: ask again when it trains")
    before = master.placement
    target = master.scale(_wanted(request), time.time())
    return {"from": str(before), "to": str(target)}


def _wanted(request: dict[str, Any]) -> Placement | int:
    if "workers" not in request:
        return Placement.parse(request["placement"])
    workers = request["workers"]
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise RefusedError(f"{str(workers)[:40]!r} is no number of workers")
    return workers


def _status(master: Master, *, knows_ests: bool) -> dict[str, Any]:
    return {
        "placement": str(master.placement) if knows_ests else None,
        "members": master.members,
        "generation": master.generation,
        "failures": master.failures,
        "wanted": str(master.wanted) if knows_ests and master.wanted != master.placement else None,
    }
