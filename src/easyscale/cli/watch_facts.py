"""What is known of a run, as plain data: what ``ps`` and ``watch`` show and print as JSON."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

from easyscale.cli.status import mean_scalars
from easyscale.core.events import FailureEvent, LossEvent, PlanEvent, RescaleEvent, float_to_json
from easyscale.core.placement import Placement
from easyscale.launch.runs import Run


def facts(run: Run) -> dict[str, Any]:
    """One run; what is not known is None. Times are in seconds, ``began_at`` since the epoch."""
    history = run.history
    steps = history.steps
    last = steps[-1] if steps else None
    total = last.total_steps if last else None
    done = history.end.global_steps if history.end else last.global_step + 1 if last else 0
    speed = history.steps_per_s
    start = history.start
    ended_at = history.end.t if history.end else last.t if last and run.state == "dead" else time.time()
    return {
        "name": run.name,
        "folder": str(run.folder),
        "script": start.script if start else None,
        "state": run.state,
        **_workers(run),
        "global_steps": done,
        "total_steps": total,
        "epoch": last.epoch if last else None,
        "scalars": dict(mean_scalars(last)) if last else {},
        "steps_per_s": speed,
        "eta_s": (total - done) / speed if speed and total and not run.is_over else None,
        "began_at": run.began_at,
        "age_s": max(0.0, time.time() - run.began_at),
        "seconds": max(0.0, ended_at - run.began_at),
        "generation": history.rescales[-1].generation if history.rescales else 0,
        "lost_workers": history.lost,
        "failures": history.failures if run.is_over else run.status.get("failures", history.failures),
        "max_failures": start.max_failures if start else None,
        "plan": _plan(history.plan, start.t if start else 0.0),
        "error": run.result.get("error") or _failure(run),
        "checkpoint": history.checkpoint,
        "digest": history.end.digest if history.end else None,
    }


def _workers(run: Run) -> dict[str, Any]:
    """Which ESTs run where; where the script said how many there are, the launcher or the result knows."""
    placement, members = run.history.placement, run.history.members
    if placement is None:
        placement = (run.result.get("placements") or [None])[-1] if run.result.get("num_ests") else None
    status = {} if run.is_over else run.status
    if status.get("placement"):
        placement, members = status["placement"], status["members"]
    ranks = Placement.parse(placement).ranks_by_worker if placement else ()
    return {
        "num_ests": sum(map(len, ranks)) or None,
        "num_workers": len(members),
        "placement": placement,
        "wanted": status.get("wanted"),
        "workers": [{"worker": w, "virtual_ranks": list(r)} for w, r in zip(members, ranks, strict=False)],
    }


def _plan(event: PlanEvent | None, began_at: float) -> dict[str, Any] | None:
    """The planner's last decision; ``after_s`` is the time since the run began."""
    if event is None:
        return None
    body = dataclasses.asdict(event)
    return {"after_s": body.pop("t") - began_at, **body}


def _failure(run: Run) -> str | None:
    return next((event.message for event in reversed(run.history.changes) if isinstance(event, FailureEvent)), None)


def change_facts(event: RescaleEvent | LossEvent | FailureEvent, began_at: float) -> dict[str, Any]:
    """One line of the history; ``after_s`` is the time since the run began."""
    body: dict[str, Any] = {"after_s": event.t - began_at}
    if isinstance(event, RescaleEvent):
        return {
            **body,
            "what": "rescale",
            "global_step": event.global_step,
            "generation": event.generation,
            "reason": event.reason,
            "before": event.before,
            "placement": event.placement,
            "joined": event.joined,
            "left": event.left,
            "seconds": event.seconds,
        }
    what = "loss" if isinstance(event, LossEvent) else "failure"
    return {**body, "what": what, "worker": event.worker_rank, "message": event.message}


def to_json(body: Any) -> str:
    """Strict JSON: a loss that is infinite or undefined is a string, as in the events."""
    return json.dumps(_strict(body), indent=2, allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return float_to_json(value)
    if isinstance(value, dict):
        return {key: _strict(one) for key, one in value.items()}
    return [_strict(one) for one in value] if isinstance(value, list) else value
