"""How long one mini-batch of one EST takes on which kind of GPU: a table from CSV. Runs in ``easyscale simulate``.

Promise: seconds for any batch size; between measured sizes linear, beyond them the nearest two points' line.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from easyscale.core.errors import RefusedError

COLUMNS = ("model", "batch_size", "gpu", "step_time_s")


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Measured step times, by model and kind of GPU, each a list of (batch size, seconds) in order of size.

    Attributes:
        points: the measurements.
        fixed_share: with a single measured size only, the share of its time that does not depend on the batch:
            0 is time proportional to the batch, 1 the same time at any batch.
    """

    points: Mapping[tuple[str, str], tuple[tuple[float, float], ...]]
    fixed_share: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.fixed_share <= 1:
            raise RefusedError(f"the fixed share of a step's time is {self.fixed_share}: give a number from 0 to 1")

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(sorted({model for model, _ in self.points}))

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(sorted({kind for _, kind in self.points}))

    def has(self, model: str, kind: str) -> bool:
        return (_normal(model), kind.upper()) in self.points

    def seconds(self, model: str, kind: str, batch_size: float) -> float:
        """Time of one mini-batch of one EST."""
        points = self.points.get((_normal(model), kind.upper()))
        if points is None:
            raise RefusedError(
                f"no step time for {model!r} on {kind!r}: the table has {', '.join(self.models)} on "
                f"{', '.join(self.kinds)}; give another table with --step-times or another --cluster"
            )
        found = self._one_point(*points[0], batch_size) if len(points) == 1 else _on_line(points, batch_size)
        if found <= 0:
            raise RefusedError(
                f"the step times of {model!r} on {kind!r} give {found:g} s at batch size {batch_size:g}: measure nearer"
            )
        return found

    def _one_point(self, size: float, seconds: float, batch_size: float) -> float:
        return seconds * (self.fixed_share + (1 - self.fixed_share) * batch_size / size)


def read_step_times(path: Path, mode: str | None = None, fixed_share: float = 0.0) -> StepTimes:
    """Read a CSV with columns model, batch_size, gpu, step_time_s.

    Args:
        path: the file; Sia's table, with local_bsz and num_gpus, is understood too (its rows of one GPU).
        mode: keep rows with this value in column ``mode`` only (one step time per determinism level, for example).
        fixed_share: see ``StepTimes``.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if rows and "local_bsz" in rows[0]:
        rows = [_from_sia(row) for row in rows if row.get("num_gpus") == "1"]
    missing = [column for column in COLUMNS if rows and column not in rows[0]]
    if not rows or missing:
        raise RefusedError(
            f"{path} is no table of step times: it has {'no rows' if not rows else 'no column ' + ', '.join(missing)}; "
            f"the columns are {', '.join(COLUMNS)} and, if there are several of a kind, mode"
        )
    modes = sorted({row["mode"] for row in rows if row.get("mode")})
    if mode is None and len(modes) > 1:
        raise RefusedError(f"{path} has step times of {len(modes)} modes: choose one of {', '.join(map(repr, modes))}")
    if mode is not None and modes and mode not in modes:
        raise RefusedError(f"{path} has no mode {mode!r}: choose one of {', '.join(map(repr, modes))}")
    kept = (row for row in rows if mode is None or not modes or row["mode"] == mode)
    return _table(path, kept, fixed_share)


def _from_sia(row: dict[str, str]) -> dict[str, str]:
    """Sia's table has a row for each cluster size and says more of a GPU than its kind: "T4 (g4dn.12xlarge)"."""
    return {**row, "batch_size": row["local_bsz"], "gpu": row["gpu"].split(" (")[0].split("-")[0]}


def _table(path: Path, rows: Iterable[Mapping[str, str]], fixed_share: float) -> StepTimes:
    points: dict[tuple[str, str], dict[float, float]] = {}
    for number, row in enumerate(rows, start=2):
        try:
            size, seconds = float(row["batch_size"]), float(row["step_time_s"])
        except ValueError:
            raise RefusedError(f"{path}, row {number}: batch_size and step_time_s must be numbers") from None
        points.setdefault((_normal(row["model"]), row["gpu"].upper()), {})[size] = seconds
    return StepTimes({key: tuple(sorted(values.items())) for key, values in points.items()}, fixed_share)


def _on_line(points: tuple[tuple[float, float], ...], x: float) -> float:
    """The piece that holds ``x``, or the nearest one drawn out."""
    index = 1
    while index < len(points) - 1 and points[index][0] < x:
        index += 1
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


_SAME_MODEL = {"ncf": "neumf", "swin": "swintransformer", "shufflenet": "shufflenetv2"}


def _normal(model: str) -> str:
    """Traces and tables spell models differently."""
    lower = model.lower().replace("-", "").replace("_", "")
    return _SAME_MODEL.get(lower, lower)
