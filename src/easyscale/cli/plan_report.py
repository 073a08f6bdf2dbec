"""How ``plan`` says what it found: tables and sentences, or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from easyscale.cli.kinds import written_counts
from easyscale.schedule.planner import to_placement, unused

if TYPE_CHECKING:
    from easyscale.cli.plan import Advice
    from easyscale.schedule.model import Plan
    from easyscale.schedule.proposals import Proposal


_WORDS = ("ESTs on each", "needs", "add", "unused then")


def print_report(advice: Advice, determinism: str) -> None:
    """What sizes are possible, the plan, what brings nothing, what to add."""
    click.echo(f"{advice.job.num_ests} ESTs on {written_counts(advice.devices)} at {determinism}")
    _print_table(
        ["devices", "ESTs on each", "steps/s", "mini-batches/s", "speed-up", "waste", "needs"],
        [_row(plan) for plan in advice.sizes],
    )
    placed = to_placement(advice.plan)
    click.echo(f"plan: {advice.plan} (placement {placed.placement})")
    idle = unused(advice.plan, advice.devices)
    if idle:
        click.echo(f"bring nothing: {written_counts(idle)}, which can be given back")
    if not advice.proposals:
        click.echo("nothing that could be added makes it faster")
        return
    click.echo("more devices:")
    _print_table(
        ["add", "ESTs on each", "steps/s", "gain", "per device", "needs", "unused then"],
        [_proposal_row(proposal) for proposal in advice.proposals],
    )


def to_json(advice: Advice, determinism: str) -> dict[str, Any]:
    placed = to_placement(advice.plan)
    return {
        "num_ests": advice.job.num_ests,
        "determinism": determinism,
        "devices": advice.devices,
        "plan": {
            **_plan_to_json(advice.plan),
            "placement": str(placed.placement),
            "kind_by_worker": list(placed.kind_by_worker),
        },
        "brings_nothing": unused(advice.plan, advice.devices),
        "sizes": [_plan_to_json(plan) for plan in advice.sizes],
        "proposals": [_proposal_to_json(proposal) for proposal in advice.proposals],
    }


def _print_table(columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in columns:
        table.add_column(name, justify="left" if name in _WORDS else "right", no_wrap=name != "ESTs on each")
    for row in rows:
        table.add_row(*row)
    Console().print(table, highlight=False)


def _row(plan: Plan) -> list[str]:
    return [
        str(plan.num_devices),
        str(plan),
        f"{plan.steps_per_s:.4g}",
        f"{plan.mini_batches_per_s:.4g}",
        f"{plan.speedup:.2f}x",
        f"{plan.waste:.1%}",
        _level(plan),
    ]


def _proposal_row(proposal: Proposal) -> list[str]:
    plan = proposal.plan
    return [
        f"{proposal.count} {proposal.kind}",
        str(plan),
        f"{plan.steps_per_s:.4g}",
        f"+{proposal.gain:.1%}",
        f"+{proposal.gain_per_device:.1%}",
        _level(plan),
        written_counts(unused(plan, proposal.devices)) if plan.num_devices < sum(proposal.devices.values()) else "",
    ]


def _level(plan: Plan) -> str:
    return "D1+D2" if plan.mixes_kinds else "D1"


def _plan_to_json(plan: Plan) -> dict[str, Any]:
    return {
        "devices": plan.num_devices,
        "shares": [share._asdict() for share in plan.shares],
        "step_s": plan.step_s,
        "steps_per_s": plan.steps_per_s,
        "mini_batches_per_s": plan.mini_batches_per_s,
        "speedup": plan.speedup,
        "waste": plan.waste,
        "needs": _level(plan),
    }


def _proposal_to_json(proposal: Proposal) -> dict[str, Any]:
    plan = proposal.plan
    return {
        "kind": proposal.kind,
        "count": proposal.count,
        "gain": proposal.gain,
        "gain_per_device": proposal.gain_per_device,
        "brings_nothing": unused(plan, proposal.devices),
        "plan": _plan_to_json(plan),
    }
