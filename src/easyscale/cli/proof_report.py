"""How ``verify`` says what it found: a table and one sentence, or JSON."""

from __future__ import annotations

from typing import Any

import click

from easyscale.cli.proof import Outcome, Pinpoint, Proof


def print_report(proof: Proof) -> None:
    """The table of runs, then the verdict."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name, justify in (
        ("placement", "left"),
        ("steps", "right"),
        ("seconds", "right"),
        ("digest", "left"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("equal?")
    for outcome in proof.outcomes:
        table.add_row(*_row(outcome))
    Console().print(table, highlight=False)
    click.echo(_verdict(proof))


def to_json(proof: Proof) -> dict[str, Any]:
    different = proof.first_different
    body: dict[str, Any] = {
        "equal": proof.is_equal,
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


def _run_to_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "placement": str(outcome.variant.placement),
        "backend": "ddp" if outcome.variant.is_ddp else "easyscale",
        "global_steps": len(outcome.record.steps),
        "seconds": outcome.result.seconds,
        "digest": _last_digest(outcome),
        "equal": outcome.is_equal,
    }


def _last_digest(outcome: Outcome) -> str:
    """Of the script's end, else of its last watched step."""
    steps = outcome.record.steps
    return outcome.record.digest or (steps[max(steps)].digest if steps else None) or ""


def _verdict(proof: Proof) -> str:
    different = proof.first_different
    if different is None or different.comparison is None:
        runs = len(proof.outcomes)
        return f"equal: {runs} runs, {len(proof.outcomes[0].record.steps)} global steps, every digest the same"
    sentence = f"different: {proof.outcomes[0].variant} and {different.variant}: {different.comparison.reason}"
    return sentence if proof.pinpoint is None else f"{sentence}\n{_place(proof.pinpoint)}"


def _place(pinpoint: Pinpoint) -> str:
    if pinpoint.missing is not None:
        return f"run again up to global step {pinpoint.global_step}: {pinpoint.missing}"
    if pinpoint.difference is None:
        return (
            f"run again up to global step {pinpoint.global_step}, the two were equal there: the script itself does "
            f"not repeat (time, files, threads or unseeded random numbers may decide its numbers)"
        )
    return f"run again up to global step {pinpoint.global_step}: {pinpoint.difference}"
