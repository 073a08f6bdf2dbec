"""What the options of ``easyscale simulate`` mean together. Everything wrong is said before a simulation starts."""

from __future__ import annotations

import importlib
import sys
from math import inf
from pathlib import Path
from typing import Any

from easyscale.core.errors import RefusedError
from easyscale.schedule.cluster import Counts, parse_cluster
from easyscale.schedule.policies import NamedPolicy, named
from easyscale.sim import adjust, hazards
from easyscale.sim.experiment import Experiment
from easyscale.sim.published.cluster import POLICIES as PUBLISHED
from easyscale.sim.serving import DAY_S, Curve, Serving, read_curve
from easyscale.sim.settings import Settings
from easyscale.sim.step_times import StepTimes, read_step_times
from easyscale.sim.trace import DeviceChange, TraceJob
from easyscale.sim.traces.columns import Recorded, parse_columns
from easyscale.sim.traces.generate import Generated, generate
from easyscale.sim.traces.paper import PaperJob, is_paper_trace, read_paper_jobs
from easyscale.sim.traces.read import Reading, header_of, read_trace

Given = dict[str, Any]


def policies_of(text: str) -> list[NamedPolicy]:
    """``easyscale,fifo,mymodule:mypolicy``."""
    names = [name.strip() for name in text.split(",")]
    if len(set(names)) < len(names):
        raise RefusedError(f"--policy {text} names a policy twice: name each once")
    return [_own_policy(name) if ":" in name else named(name) for name in names]


def _own_policy(name: str) -> NamedPolicy:
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module_name), function_name, None)
    except ImportError as error:
        raise RefusedError(f"--policy {name}: {error} (looked in {here} too): give module:function") from error
    finally:
        sys.path.remove(here)
    if not callable(function):
        raise RefusedError(
            f"--policy {name}: {module_name} has no function {function_name}: write def {function_name}(books)"
        )
    return NamedPolicy(name, function)


def experiment_of(given: Given) -> Experiment:
    kinds, capacity = parse_cluster(given["cluster"])
    default_s, cost_by_model = _rescale_costs(given["rescale_cost"])
    settings = Settings(
        rescale_s=default_s,
        interval_s=given["interval"],
        give_back_s=given["give_back"],
        checkpoint_s=given["checkpoint"],
        seed=given["seed"],
    )
    jobs = _jobs(given, kinds, capacity)
    if cost_by_model:
        jobs = adjust.with_rescale_costs(jobs, cost_by_model)
    if given["network"]:
        jobs = adjust.with_network(jobs, _network(given["network"]))
    if given["backlog"]:
        jobs = adjust.as_backlog(jobs)
    until_s = given["until"] * DAY_S if given["until"] else 2 * DAY_S if given["serving"] else inf
    serving = _serving(given, kinds, until_s) if given["serving"] else None
    changes = _changes(given, kinds, capacity, min(until_s, _horizon(jobs)))
    return Experiment(kinds, capacity, jobs, settings, changes, serving, until_s)


def published_inputs(given: Given) -> tuple[list[PaperJob], StepTimes, list[str]]:
    if len(given["traces"]) != 1 or not is_paper_trace(header_of(Path(given["traces"][0]))):
        raise RefusedError("--published is for the published trace alone: give it with --trace workload_test.csv")
    if not given["step_times"]:
        raise RefusedError("--published needs step times of the trace's models: give them with --step-times FILE.csv")
    times = read_step_times(Path(given["step_times"]), given["mode"], given["fixed_share"])
    asked = list(PUBLISHED) if given["policy"] == "easyscale" else given["policy"].split(",")
    return read_paper_jobs(Path(given["traces"][0])), times, asked


def _jobs(given: Given, kinds: tuple[str, ...], capacity: Counts) -> list[TraceJob]:
    if bool(given["traces"]) == (given["generate"] is not None):
        raise RefusedError("give jobs either with --trace FILE or with --generate JOBS")
    if given["generate"] is not None:
        return generate(Generated(given["generate"], given["days"], given["seed"]), kinds, capacity)
    times = None
    if given["step_times"]:
        times = read_step_times(Path(given["step_times"]), given["mode"], given["fixed_share"])
    columns = parse_columns(given["columns"]) if given["columns"] else None
    jobs = read_trace([Path(path) for path in given["traces"]], Reading(kinds, times, columns, _recorded(given, kinds)))
    if not jobs:
        raise RefusedError(f"there is no job in {', '.join(given['traces'])}: give a trace with jobs")
    return jobs


def _recorded(given: Given, kinds: tuple[str, ...]) -> Recorded:
    speeds = dict.fromkeys(kinds, 1.0)
    for kind, speed in _pairs("--relative-speed", given["relative_speed"] or ""):
        if kind.upper() not in speeds or speed <= 0:
            raise RefusedError(f"--relative-speed gives {kind}={speed:g}: kinds are {', '.join(kinds)}, speeds above 0")
        speeds[kind.upper()] = speed
    recorded_on = (given["recorded_on"] or kinds[0]).upper()
    if recorded_on not in speeds:
        raise RefusedError(f"--recorded-on {recorded_on} is not in the cluster: choose from {', '.join(kinds)}")
    return Recorded(speeds, recorded_on, not given["no_mixing"])


def _rescale_costs(text: str) -> tuple[float, dict[str, float]]:
    first, *rest = text.split(",")
    try:
        default_s = float(first)
    except ValueError:
        raise RefusedError(f"--rescale-cost {text!r} does not begin with seconds: write 1 or 1,bert=2") from None
    return default_s, dict(_pairs("--rescale-cost", ",".join(rest)))


def _pairs(option: str, text: str) -> list[tuple[str, float]]:
    try:
        parts = [part.partition("=") for part in text.split(",") if part]
        return [(name.strip(), float(value)) for name, _, value in parts]
    except ValueError:
        raise RefusedError(f"{option} {text!r} is not names and numbers: write them as NAME=NUMBER,...") from None


def _network(text: str) -> adjust.Network:
    try:
        size, inside, between = text.split(":")
        return adjust.Network(int(size), float(inside), float(between))
    except ValueError:
        raise RefusedError(f"--network {text!r} is not SIZE:SECONDS:SECONDS: write it as 8:0.002:0.03") from None


def _serving(given: Given, kinds: tuple[str, ...], until_s: float) -> Serving:
    kind = (given["serving_kind"] or kinds[0]).upper()
    if kind not in kinds:
        raise RefusedError(f"--serving-kind {kind} is not in the cluster: choose from {', '.join(kinds)}")
    duty = read_curve(Path(given["serving_duty"]), 0.01, is_daily=True) if given["serving_duty"] else None
    demand = read_curve(Path(given["serving"]))
    return Serving(kind, demand, duty or Curve((0.0,), (1.0,)), given["serving_begin"] * DAY_S, until_s)


def _changes(given: Given, kinds: tuple[str, ...], capacity: Counts, until_s: float) -> list[DeviceChange]:
    changes = hazards.read_changes(Path(given["device_trace"])) if given["device_trace"] else []
    rates = (
        hazards.Rate("failure", given["failures"], given["repair"]),
        hazards.Rate("reclaim", given["reclaims"], given["reclaimed_for"]),
    )
    for rate in rates:
        changes += hazards.draw_changes(kinds, capacity, rate, until_s, given["seed"])
    return changes


def _horizon(jobs: list[TraceJob]) -> float:
    """Failures are drawn until then: long after the last job, even if all ran one after another on their slowest
    kind.
    """
    last_s = max(job.job.submit_s for job in jobs)
    work_s = sum(job.steps * job.job.model.num_ests / job.job.model.slowest_capability for job in jobs)
    return last_s + min(work_s, 365 * DAY_S)
