"""Joins what each worker reports about a global step into one report of the job. Runs in the launcher."""

from __future__ import annotations

from collections.abc import Iterator

from easyscale.core.events import StepEvent
from easyscale.core.messages import StepReport


class StepMerger:
    """A step is finished when every worker has finished it."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._reports: dict[int, dict[int, StepReport]] = {}
        self.finished_steps = 0
        self.last_finished: int | None = None

    def add(self, report: StepReport) -> StepReport | None:
        """Take a report; when it completes its step, give that step back as one report of the whole job."""
        by_worker = self._reports.setdefault(report.global_step, {})
        by_worker[report.worker_rank] = report
        if len(by_worker) < self._num_workers:
            return None
        del self._reports[report.global_step]
        self.finished_steps += 1
        self.last_finished = report.global_step
        return _merged([by_worker[worker] for worker in range(self._num_workers)])


def to_event(report: StepReport, t: float) -> StepEvent:
    return StepEvent(
        t=t,
        global_step=report.global_step,
        epoch=report.epoch,
        seconds=round(report.seconds, 6),
        log=report.scalars,
        digest=report.digest,
        tensors=report.tensors,
    )


def _merged(reports: list[StepReport]) -> StepReport:
    scalars = dict(sorted(_all_scalars(reports), key=lambda item: int(item[0])))
    main = next((report for report in reports if report.tensors is not None), reports[0])
    return StepReport(
        worker_rank=main.worker_rank,
        global_step=main.global_step,
        epoch=main.epoch,
        total_steps=main.total_steps,
        seconds=max(report.seconds for report in reports),
        scalars=scalars,
        digest=main.digest,
        tensors=main.tensors,
    )


def _all_scalars(reports: list[StepReport]) -> Iterator[tuple[str, dict[str, float]]]:
    for report in reports:
        yield from report.scalars.items()
