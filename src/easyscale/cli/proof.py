"""What ``verify`` does: the runs it takes, one after another, and what their records say together."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from easyscale.cli import disturbance, records
from easyscale.cli.disturbance import Disturbance, Happening
from easyscale.cli.records import Comparison, RunRecord
from easyscale.core.errors import RefusedError
from easyscale.core.job import ScriptSpec, WatchSpec
from easyscale.core.placement import Placement

if TYPE_CHECKING:
    from easyscale.cli.tensors import TensorDifference
    from easyscale.launch.elasticity import Elasticity
    from easyscale.launch.run import RunResult


@dataclass(frozen=True, slots=True)
class Elastic:
    """What shall happen in one run, and the rules under which it does."""

    asked: tuple[Disturbance, ...]
    rules: Elasticity


@dataclass(frozen=True, slots=True)
class Plan:
    """The placements to run; under DDP too, and once while workers come and go, if asked."""

    script: ScriptSpec
    placements: tuple[Placement, ...]
    overrides: dict[str, Any]
    is_against_ddp: bool
    elastic: Elastic | None = None

    def variants(self) -> list[Variant]:
        """All runs; the first is the one that the others are compared with."""
        runs = [Variant(placement, self.overrides) for placement in self.placements]
        if self.elastic is not None:
            runs.append(Variant(disturbance.start_among(self.placements), self.overrides, self.elastic))
        if not self.is_against_ddp:
            return runs
        num_ests = self.placements[0].num_ests
        ddp = Variant(Placement.even(num_ests, num_ests), {**self.overrides, "backend": "ddp"})
        return [ddp, *runs]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the job."""

    placement: Placement
    overrides: dict[str, Any]
    elastic: Elastic | None = None

    @property
    def is_ddp(self) -> bool:
        return self.overrides.get("backend") == "ddp"

    def __str__(self) -> str:
        if self.is_ddp:
            return f"DDP, {self.placement.num_ests} processes"
        return str(self.placement) if self.elastic is None else f"elastic, from {self.placement}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that ended well, and how it compares with the first one (None for the first itself)."""

    variant: Variant
    result: RunResult
    record: RunRecord
    comparison: Comparison | None
    happenings: tuple[Happening, ...] = ()

    @property
    def is_equal(self) -> bool:
        return self.comparison is None or self.comparison.is_equal


@dataclass(frozen=True, slots=True)
class Pinpoint:
    """The first difference, looked at by running both placements once more up to that step.

    ``missing`` says why there was nothing to look at; without it, no ``difference`` means equal the second time.
    """

    left: Variant
    right: Variant
    global_step: int
    difference: TensorDifference | None = None
    missing: str | None = None


class Proof:
    """Runs the plan. Afterwards either ``failed`` holds the run that did not end well, or all outcomes are there."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.outcomes: list[Outcome] = []
        self.failed: tuple[Variant, RunResult] | None = None
        self.pinpoint: Pinpoint | None = None

    @property
    def is_equal(self) -> bool:
        return all(outcome.is_equal for outcome in self.outcomes)

    @property
    def missing(self) -> list[Disturbance]:
        """What was asked for and did not happen."""
        found = [happening for outcome in self.outcomes for happening in outcome.happenings]
        return [happening.asked for happening in found if not happening.has_happened]

    @property
    def is_proved(self) -> bool:
        return self.is_equal and not self.missing

    @property
    def first_different(self) -> Outcome | None:
        return next((outcome for outcome in self.outcomes if not outcome.is_equal), None)

    def run(self, folder: Path) -> None:
        """Run all variants, compare them, and pin the first difference down.

        Raises:
            RefusedError: the script has nothing to compare.
        """
        variants = self.plan.variants()
        for number, variant in enumerate(variants, start=1):
            path = folder / _folder_name(number, variant)
            watch = WatchSpec(digests=True, by_all=variant.elastic is not None)
            result = self._run(variant, path, watch, f"{number}/{len(variants)}  {variant}")
            if result.state != "finished":
                self.failed = (variant, result)
                return
            self._add(variant, result, path)
        different = self.first_different
        if different is not None:
            self._pin_down(different, folder)

    def _add(self, variant: Variant, result: RunResult, path: Path) -> None:
        record = dataclasses.replace(records.load(path), name=str(variant))
        if not record.steps and not self.outcomes:
            raise RefusedError(_nothing_to_compare(self.plan.script.path, result))
        if result.global_steps and len(record.steps) != result.global_steps:
            raise RefusedError(
                f"{path} holds {len(record.steps)} of {result.global_steps} global steps: it could not be written "
                f"in full, so nothing can be proved"
            )
        comparison = records.compare_steps(self.outcomes[0].record, record) if self.outcomes else None
        elastic = variant.elastic
        found = () if elastic is None else disturbance.happenings(elastic.asked, path)
        self.outcomes.append(Outcome(variant, result, record, comparison, found))

    def _pin_down(self, different: Outcome, folder: Path) -> None:
        comparison = different.comparison
        if comparison is None or comparison.global_step is None or not comparison.tensors:
            return
        from easyscale.cli import tensors

        pinned = Pinpoint(self.outcomes[0].variant, different.variant, comparison.global_step)
        files = [folder / "again-1.safetensors", folder / "again-2.safetensors"]
        for variant, file in zip((pinned.left, pinned.right), files, strict=True):
            watch = WatchSpec(dump_step=pinned.global_step, dump_path=str(file.absolute()))
            result = self._run(variant, file.with_suffix(""), watch, f"again, to step {pinned.global_step}  {variant}")
            if result.state == "stopped":
                self.failed = (variant, result)
                return
            if not file.exists():
                error = result.error or "the script ended before it"
                self.pinpoint = dataclasses.replace(pinned, missing=f"{variant} did not come that far ({error})")
                return
        found = tensors.first_difference(files[0], files[1], look_first_at=comparison.tensors[0])
        self.pinpoint = dataclasses.replace(pinned, difference=found)

    def _run(self, variant: Variant, path: Path, watch: WatchSpec, label: str) -> RunResult:
        from easyscale.cli.console import RunConsole
        from easyscale.launch.folder import RunFolder
        from easyscale.launch.run import run
        from easyscale.launch.spec import RunSpec

        folder = RunFolder.create(path.parent, path.name, self.plan.script.path)
        console = RunConsole(is_muted=True, has_notices=variant.elastic is None, label=label)
        spec = RunSpec(self.plan.script, variant.placement, True, variant.overrides, watch)
        if variant.elastic is not None:
            spec = dataclasses.replace(spec, elasticity=variant.elastic.rules)
        try:
            return run(spec, folder, console)
        finally:
            console.clear()


def _folder_name(number: int, variant: Variant) -> str:
    kind = "ddp" if variant.is_ddp else "elastic" if variant.elastic else f"{variant.placement.num_workers}-workers"
    return f"{number}-{kind}"


def _nothing_to_compare(script: str, result: RunResult) -> str:
    found = "opened no session" if result.num_ests is None else "ran no global step"
    return f"{script} {found}, so nothing was compared: verify needs a script that trains with easyscale.session()"
