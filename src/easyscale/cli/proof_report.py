"""How ``verify`` says what it found: a table and one sentence, or JSON."""

from __future__ import annotations

from typing import Any, Literal

import click

from easyscale.cli import disturbance
from easyscale.cli.disturbance import Happening
from easyscale.cli.proof import Outcome, Pinpoint, Proof

Justify = Literal["left", "right"]

_RUN_COLUMNS: tuple[tuple[str, Justify], ...] = (
    ("placement", "left"),
    ("steps", "right"),
    ("seconds", "right"),
    ("digest", "left"),
    ("equal?", "left"),
)
_EVENT_COLUMNS: tuple[tuple[str, Justify], ...] = (
    ("global step", "right"),
    ("event", "left"),
    ("placement then", "left"),
    ("pause", "right"),
    ("whole step", "right"),
)

_SIGNALS = {"kill": "kill (SIGKILL)", "stop": "stop (SIGSTOP)"}


def print_report(proof: Proof) -> None:
    """The table of runs, that of what happened in the elastic one, then the verdict."""
    _print_table(_RUN_COLUMNS, [_row(outcome) for outcome in proof.outcomes])
    happenings = [_happening_row(one) for outcome in proof.outcomes for one in outcome.happenings]
    if happenings:
        _print_table(_EVENT_COLUMNS, happenings)
    click.echo(_verdict(proof))


def _print_table(columns: tuple[tuple[str, Justify], ...], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name, justify in columns:
        table.add_column(name, justify=justify)
    for row in rows:
        table.add_row(*row)
    Console().print(table, highlight=False)


def to_json(proof: Proof) -> dict[str, Any]:
    different = proof.first_different
    body: dict[str, Any] = {
        "equal": proof.is_equal,
        "proved": proof.is_proved,
        "num_ests": proof.plan.placements[0].num_ests,
        "runs": [_run_to_json(outcome) for outcome in proof.outcomes],
    }
    if different is None or different.comparison is None:
        return body
    body["difference"] = {
        "runs": [str(proof.outcomes[0].variant), str(different.variant)],
        **different.comparison.to_json(),
    }
    pinpoint = proof.pinpoint
    if pinpoint is not None:
        found = pinpoint.difference
        body["difference"]["is_reproduced"] = found is not None
        body["difference"]["first"] = None if found is None else found.to_json()
    return body


def _row(outcome: Outcome) -> list[str]:
    equal = "reference" if outcome.comparison is None else "yes" if outcome.is_equal else "NO"
    return [
        str(outcome.variant),
        str(len(outcome.record.steps)),
        f"{outcome.result.seconds:.1f}",
        _last_digest(outcome)[:12],
        equal,
    ]


def _happening_row(happening: Happening) -> list[str]:
    asked = happening.asked
    what = {"rescale": f"rescale to {asked.num_workers}", "kill": "kill (SIGKILL)", "stop": "stop (SIGSTOP)"}[
        asked.kind
    ]
    then = happening.placement or "did not happen"
    return [str(asked.global_step), what, then, _seconds(happening.pause_s), _seconds(happening.step_s)]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} s"


def _run_to_json(outcome: Outcome) -> dict[str, Any]:
    body: dict[str, Any] = {
        "placement": str(outcome.variant.placement),
        "backend": "ddp" if outcome.variant.is_ddp else "easyscale",
        "global_steps": len(outcome.record.steps),
        "seconds": outcome.result.seconds,
        "digest": _last_digest(outcome),
        "equal": outcome.is_equal,
    }
    if outcome.happenings:
        body["events"] = [disturbance.to_json(happening) for happening in outcome.happenings]
    return body


def _last_digest(outcome: Outcome) -> str:
    """Of the script's end, else of its last watched step."""
    steps = outcome.record.steps
    return outcome.record.digest or (steps[max(steps)].digest if steps else None) or ""


def _verdict(proof: Proof) -> str:
    different = proof.first_different
    if different is None or different.comparison is None:
        runs, steps = len(proof.outcomes), len(proof.outcomes[0].record.steps)
        if proof.missing:
            return _missing(proof, steps)
        return f"equal: {runs} runs, {steps} global steps, every digest the same"
    sentence = f"different: {proof.outcomes[0].variant} and {different.variant}: {different.comparison.reason}"
    return sentence if proof.pinpoint is None else f"{sentence}\n{_place(proof.pinpoint)}"


def _missing(proof: Proof, steps: int) -> str:
    """Every digest is the same, which proves nothing of what did not happen."""
    missing = proof.missing
    late = [one for one in missing if one.global_step >= steps]
    names = ", ".join(map(str, late or missing))
    why = (
        f"the script ends after {steps} global steps, from 0 to {steps - 1}"
        if late
        else "the elastic run came to no border or turn there where it could"
    )
    return f"not proved: every digest is the same, but {names} did not happen ({why})"


def _place(pinpoint: Pinpoint) -> str:
    if pinpoint.missing is not None:
        return f"run again up to global step {pinpoint.global_step}: {pinpoint.missing}"
    if pinpoint.difference is None:
        return (
            f"run again up to global step {pinpoint.global_step}, the two were equal there: the script itself does "
            f"not repeat (time, files, threads or unseeded random numbers may decide its numbers)"
        )
    return f"run again up to global step {pinpoint.global_step}: {pinpoint.difference}"
