"""Which format a trace has, told by its header. Runs in ``easyscale simulate``."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from easyscale.core.errors import RefusedError
from easyscale.sim.step_times import StepTimes
from easyscale.sim.trace import TraceJob
from easyscale.sim.traces import own, paper, pollux
from easyscale.sim.traces.columns import ELASTICFLOW, Recorded, read_columns


@dataclass(frozen=True, slots=True)
class Reading:
    """What is needed beside the file.

    Attributes:
        kinds: the cluster's.
        times: step times, for traces that name models.
        columns: for a CSV of unknown format, which column is what.
        recorded: what durations mean, for traces that have them.
    """

    kinds: tuple[str, ...]
    times: StepTimes | None
    columns: Mapping[str, str] | None
    recorded: Recorded


def read_trace(paths: list[Path], reading: Reading) -> list[TraceJob]:
    """All jobs of these files together, by rising submission. Names that occur in two files are told apart by the
    file's.
    """
    jobs = [(path, job) for path in paths for job in _read_one(path, reading)]
    names = [job.job.name for _, job in jobs]
    if len(set(names)) < len(names):
        jobs = [(path, _renamed(job, path, number)) for number, (path, job) in enumerate(jobs)]
    return sorted((job for _, job in jobs), key=lambda job: job.job.submit_s)


def _read_one(path: Path, reading: Reading) -> list[TraceJob]:
    header = header_of(path)
    if reading.columns is not None:
        return read_columns(path, reading.columns, reading.recorded)
    if own.is_own_trace(header):
        return own.read_own(path, reading.kinds)
    if set(header) >= set(ELASTICFLOW.values()):
        known = dict(ELASTICFLOW)
        if "model_name" in header:
            known["model"] = "model_name"
        return read_columns(path, known, reading.recorded)
    if paper.is_paper_trace(header):
        return paper.to_trace_jobs(paper.read_paper_jobs(path), _times(path, reading), reading.kinds)
    if pollux.is_pollux_trace(header):
        return pollux.read_pollux(path, _times(path, reading), reading.kinds)
    raise RefusedError(
        f"{path} has the columns {', '.join(header)}, which is no format known: say which is what with "
        f"--columns submit=...,devices=...,duration=..."
    )


def header_of(path: Path) -> list[str]:
    if not path.is_file():
        raise RefusedError(f"trace {path} does not exist: give a CSV file, or --generate JOBS")
    with path.open(encoding="utf-8", newline="") as file:
        header = next(csv.reader(file), [])
    if not header:
        raise RefusedError(f"trace {path} is empty: give a CSV file with a header")
    return header


def _times(path: Path, reading: Reading) -> StepTimes:
    if reading.times is None:
        raise RefusedError(f"{path} names models and no durations: give their step times with --step-times FILE.csv")
    return reading.times


def _renamed(job: TraceJob, path: Path, number: int) -> TraceJob:
    return replace(job, job=replace(job.job, name=f"{path.stem}/{job.job.name}/{number}"))
