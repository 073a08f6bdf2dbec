"""Whether a job may go on from a checkpoint with equal bits. Runs in the worker."""

from __future__ import annotations

import json
from typing import Any

from easyscale.core.errors import RefusedError
from easyscale.train.checkpoint.state import Checkpoint, JobFacts

_ADVICE = {
    "num_ests": "start it with --ests {was}",
    "seed": "start it with --seed {was}",
    "rng": "start it with --rng {was}",
    "reduction": "start it with --reduction {was}",
    "determinism": "start it with --determinism {was}",
    "threads": "start it with --threads {was}",
    "device_kind": "run it on {was}",
    "bucket_layout": "build the model as it was built then",
    "torch_version": "use torch {was}, or allow the other one and give up equal bits",
}


def check_fits(checkpoint: Checkpoint, facts: JobFacts, *, allow_other_torch: bool = False) -> list[str]:
    """Compare a job with the one that was saved.

    Returns:
        What the user must be told although the job goes on.

    Raises:
        RefusedError: its numbers would be others; names everything that differs.
    """
    differences = _differences(checkpoint.state.facts, facts)
    notes = []
    if allow_other_torch and "torch_version" in differences:
        was, now = differences.pop("torch_version")
        notes.append(
            f"{checkpoint.path} was written under torch {was} and goes on under {now}: bits equal to a run that never "
            f"stopped are no longer promised"
        )
    if differences:
        raise RefusedError(_refusal(checkpoint, differences))
    return notes


def _differences(was: JobFacts, now: JobFacts) -> dict[str, tuple[Any, Any]]:
    pairs = {name: (getattr(was, name), getattr(now, name)) for name in _ADVICE}
    if None in pairs["bucket_layout"]:  # not decided yet: it will be the checkpoint's
        del pairs["bucket_layout"]
    return {name: pair for name, pair in pairs.items() if json.dumps(pair[0]) != json.dumps(pair[1])}


def _refusal(checkpoint: Checkpoint, differences: dict[str, tuple[Any, Any]]) -> str:
    found = ", ".join(
        "another bucket_layout" if name == "bucket_layout" else f"{name}={was!r} and not {now!r}"
        for name, (was, now) in differences.items()
    )
    advice = "; ".join(_ADVICE[name].format(was=was) for name, (was, _) in differences.items())
    return f"{checkpoint.path} is of a job with {found}, so going on from it would give other numbers: {advice}"
