"""Joins what each worker reports about a global step into one report of the job. Runs in the launcher."""

from __future__ import annotations

from collections.abc import Mapping

from easyscale.core.errors import JobFailedError
from easyscale.core.events import StepEvent
from easyscale.core.messages import Logged, StepReport

Scalars = dict[str, dict[str, float]]


class StepMerger:
    """A step is finished when every worker that is there has finished it.

    Args:
        members: the workers, and the first step that each of them takes part in.
    """

    def __init__(self, members: Mapping[int, int]) -> None:
        self._members = dict(members)
        self._reports: dict[int, dict[int, StepReport]] = {}
        self._logged: dict[int, Scalars] = {}
        self.finished_steps = 0
        self.last_finished: int | None = None

    def change(self, members: Mapping[int, int]) -> list[StepReport]:
        """Other workers are there now; the steps that are finished by that."""
        self._members = dict(members)
        return self._take_finished()

    def add(self, report: StepReport) -> list[StepReport]:
        """Take a report; the steps that it finishes, each as one report of the whole job."""
        if not self._is_over(report.global_step):
            self._reports.setdefault(report.global_step, {})[report.worker_rank] = report
        return self._take_finished()

    def log(self, message: Logged) -> None:
        """Scalars of a step that came before its report; their worker may not live to send that."""
        if not self._is_over(message.global_step):
            _merge(self._logged.setdefault(message.global_step, {}), message.scalars)

    def _is_over(self, step: int) -> bool:
        return self.last_finished is not None and step <= self.last_finished

    def _take_finished(self) -> list[StepReport]:
        finished = []
        for step in sorted(self._reports):
            reports = self._reports[step]
            if any(worker not in reports for worker, first in self._members.items() if first <= step):
                break
            del self._reports[step]
            self.finished_steps += 1
            self.last_finished = step
            finished.append(_merged(reports, self._logged.pop(step, {})))
        return finished


def to_event(report: StepReport, t: float) -> StepEvent:
    return StepEvent(
        t=t,
        global_step=report.global_step,
        epoch=report.epoch,
        seconds=round(report.seconds, 6),
        log=report.scalars,
        digest=report.digest,
        tensors=report.tensors,
        total_steps=report.total_steps,
    )


def _merged(report_by_worker: dict[int, StepReport], logged: Scalars) -> StepReport:
    reports = [report_by_worker[worker] for worker in sorted(report_by_worker)]
    for report in reports:
        _merge(logged, report.scalars)
    main = next((report for report in reports if report.digest is not None), reports[0])
    for report in reports:
        if report.digest not in (None, main.digest):
            raise JobFailedError(
                f"workers {main.worker_rank} and {report.worker_rank} hold different tensors after global step "
                f"{report.global_step}, which must never be: please report it, with the script"
            )
    return StepReport(
        worker_rank=main.worker_rank,
        global_step=main.global_step,
        epoch=main.epoch,
        total_steps=main.total_steps,
        seconds=max(report.seconds for report in reports),
        scalars=dict(sorted(logged.items(), key=lambda item: int(item[0]))),
        digest=main.digest,
        tensors=main.tensors,
    )


def _merge(known: Scalars, more: Scalars) -> None:
    for rank, values in more.items():
        known.setdefault(rank, {}).update(values)
