"""A job on workers that pretend to be of speed 1.0, 0.4 and 0.4: how long until the planner has divided its ESTs well.

Every mini-batch sleeps, and computes for a short time besides. 8 ESTs begin evenly divided, 3, 3 and 2. From a step on
one of the slow workers has half of its speed. Aims: after at most 30 steps the measured rate of global steps is within
5 % of the plan's prediction and at least 1.3 times the even division's; the worker that slows down is unloaded within
20 steps; the digest is that of a run on one worker.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import report
from easyscale.core import events
from easyscale.core.events import PlanEvent, RescaleEvent, StepEvent

SCRIPT = """
import sys, time
import torch
import easyscale

steps, sleep = int(sys.argv[1]), float(sys.argv[2])
session = easyscale.session(seed=1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
model, optimizer = session.prepare(model, optimizer)
for step in session.steps(steps):
    for _ in step:
        time.sleep(sleep)
        model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
EMULATED = ("--device-kinds", "V100:1,T4:2", "--emulate-speed", "V100=1.0,T4=0.4")


def run(folder: Path, name: str, *options: str, steps: int, sleep_s: float) -> tuple[dict[str, Any], list[Any]]:
    """A run's result and events."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "easyscale", "run", "--ests", "8", "--name", name, "--run-dir", str(folder)]
    command += [*options, "--quiet", "--json", str(script), str(steps), str(sleep_s)]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600)
    return json.loads(result.stdout), list(events.read(folder / name / events.FILE_NAME))


def rate(found: list[Any], first: int, last: int) -> float:
    """Global steps per second from the end of one to the end of another."""
    times = {event.global_step: event.t for event in found if isinstance(event, StepEvent)}
    return (last - first) / (times[last] - times[first])


def measure(folder: Path, sleep_s: float) -> dict[str, Any]:
    """One job with its plan, the same evenly divided, and the same on one worker."""
    steps, slow_from = 120, 70
    reference, _ = run(folder, "reference", "--workers", "1", steps=steps, sleep_s=0.0)
    _, even = run(folder, "even", "--plan", "off", *EMULATED, steps=30, sleep_s=sleep_s)
    slowdown = ("--emulate-slowdown", f"{slow_from}:1=0.5")
    result, found = run(folder, "planned", *EMULATED, *slowdown, steps=steps, sleep_s=sleep_s)
    plans = [event for event in found if isinstance(event, PlanEvent)]
    moved, unloaded = (event.global_step for event in found if isinstance(event, RescaleEvent))
    kept = next(plan for plan in plans if plan.decision == "stay")
    measured, even_rate = rate(found, 30, slow_from - 1), rate(even, 5, 29)
    return {
        "sleep_ms": 1000 * sleep_s,
        "even_steps_per_s": round(even_rate, 3),
        "predicted_at_first": round(plans[0].steps_per_s, 3),
        "predicted_when_kept": round(kept.steps_per_s, 3),
        "measured_steps_per_s": round(measured, 3),
        "measured / predicted": round(measured / plans[0].steps_per_s, 4),
        "measured / even": round(measured / even_rate, 3),
        "moved_at_step": moved,
        "unloaded_after_steps": unloaded - slow_from,
        "placements": result["placements"],
        "is_digest_equal": result["digest"] == reference["digest"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sleep", type=float, default=0.03, help="seconds of every mini-batch")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rounds = []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(measure(Path(folder), args.sleep))
    report("live_plan", rounds=rounds)


if __name__ == "__main__":
    main()
