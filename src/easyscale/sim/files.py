"""What a simulation leaves behind: JSON and CSV. Runs in ``easyscale simulate``. A file appears whole or not at all."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from easyscale.core.errors import RefusedError
from easyscale.sim.experiment import Outcome
from easyscale.sim.report import job_rows, timeline_rows


def write_all(folder: Path, report: Mapping[str, Any], outcomes: Sequence[Outcome]) -> list[Path]:
    """``report.json``, and for each policy its jobs and its timeline."""
    paths = [write_text(folder / "report.json", as_json(report))]
    for outcome in outcomes:
        name = outcome.summary.policy.replace(":", "-")
        paths.append(write_text(folder / f"jobs-{name}.csv", as_csv(job_rows(outcome.recorder))))
        paths.append(write_text(folder / f"timeline-{name}.csv", as_csv(timeline_rows(outcome.recorder))))
    return paths


def as_json(report: Mapping[str, Any]) -> str:
    return json.dumps(report, indent=2) + "\n"


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    if rows:
        out = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        out.writeheader()
        out.writerows(rows)
    return text.getvalue()


def write_text(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise RefusedError(f"{path} cannot be written ({error.strerror}): give another place") from error
    return path
