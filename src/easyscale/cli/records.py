"""What two runs recorded about their steps, and the first place where they differ. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from easyscale.core import events
from easyscale.core.errors import RefusedError
from easyscale.core.events import StepEvent

RESULT_NAME = "result.json"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Digests of a run: of each global step where it was watched, and the last one."""

    name: str
    steps: dict[int, StepEvent]
    digest: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared and what came out.

    Attributes:
        compared: in words, such as "120 global steps".
        reason: None when all is equal, else one sentence.
        global_step: the first that differs; None when only the end was compared.
        tensors: those whose hashes differ at that step, in the job's order.
    """

    compared: str
    reason: str | None = None
    global_step: int | None = None
    tensors: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        return self.reason is None

    def to_json(self) -> dict[str, Any]:
        return {
            "equal": self.is_equal,
            "compared": self.compared,
            "reason": self.reason,
            "global_step": self.global_step,
            "tensors": list(self.tensors),
        }


def load(path: Path) -> RunRecord:
    """Read a run's folder, or its ``events.jsonl``.

    Raises:
        RefusedError: there is no record of a run.
        EasyScaleError: the record is damaged.
    """
    events_path = path / events.FILE_NAME if path.is_dir() else path
    result_path = events_path.with_name(RESULT_NAME)
    if not events_path.is_file() and not (path.is_dir() and result_path.is_file()):
        raise RefusedError(
            f"{path} is no run: give the folder of a run, its {events.FILE_NAME}, or a .safetensors file"
        )
    watched = [event for event in _steps(events_path) if event.digest is not None]
    return RunRecord(str(path), {event.global_step: event for event in watched}, _final_digest(result_path))


def compare(left: RunRecord, right: RunRecord) -> Comparison:
    """Compare every step that both recorded, else the end alone.

    Raises:
        RefusedError: they have nothing in common to compare.
    """
    if left.steps and right.steps:
        return compare_steps(left, right)
    if left.digest is None or right.digest is None:
        lacking = left if left.digest is None else right
        raise RefusedError(
            f"{lacking.name} recorded no digest to compare with: it did not finish, or its script opened no session"
        )
    compared = "the final digest only (the steps of one or both were not watched)"
    return Comparison(compared, None if left.digest == right.digest else _words("final digests", left, right))


def compare_steps(left: RunRecord, right: RunRecord) -> Comparison:
    """Compare two runs that were both watched: every step, then the end."""
    common = sorted(left.steps.keys() & right.steps.keys())
    compared = f"{len(common)} global step{'' if len(common) == 1 else 's'}"
    for step in common:
        if left.steps[step].digest != right.steps[step].digest:
            tensors = _differing_tensors(left.steps[step], right.steps[step])
            what = f", tensor {tensors[0]}" if tensors else ""
            more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
            return Comparison(compared, f"global step {step} is the first that differs{what}{more}", step, tensors)
    lonely = sorted(left.steps.keys() ^ right.steps.keys())
    if lonely:
        counts = f"{left.name} recorded {len(left.steps)} global steps, {right.name} {len(right.steps)}"
        return Comparison(compared, f"{counts}: global step {lonely[0]} is in one alone", lonely[0])
    if left.digest is not None and right.digest is not None and left.digest != right.digest:
        return Comparison(compared, _words("all steps are equal, but the digests after the script's end", left, right))
    return Comparison(compared)


def _words(what: str, left: RunRecord, right: RunRecord) -> str:
    return f"{what} differ: {str(left.digest)[:12]}… and {str(right.digest)[:12]}…"


def _differing_tensors(left: StepEvent, right: StepEvent) -> tuple[str, ...]:
    ours, theirs = left.tensors or {}, right.tensors or {}
    names = dict.fromkeys([*ours, *theirs])
    return tuple(name for name in names if ours.get(name) != theirs.get(name))


def _steps(path: Path) -> list[StepEvent]:
    if not path.is_file():
        return []
    return [event for event in events.read(path) if isinstance(event, StepEvent)]


def _final_digest(path: Path) -> str | None:
    try:
        digest = json.loads(path.read_text()).get("digest")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise RefusedError(f"{path} cannot be read ({error})") from error
    return digest if isinstance(digest, str) else None
