"""The published program's cluster: a tick of 60 s, three policies. Runs in ``easyscale simulate --published``.

Promise: its makespan and mean JCT to the last digit for "yarn-cs" and "homo". For "heter" the published program
depends on the order of a Python set; here every tie is decided by a written rule, so the figure differs by some
percent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from easyscale.core.errors import RefusedError
from easyscale.sim.published.proposals import Counts, PublishedProposal, proposals
from easyscale.sim.step_times import StepTimes
from easyscale.sim.traces.paper import PaperJob

KINDS = ("V100", "P100", "T4")
POOL: Counts = (32, 16, 16)
POLICIES = ("yarn-cs", "homo", "heter")
TICK_S = 60
START_DELAY_S = 20.0
MAX_WASTE = 0.30
GROWTH = 2


@dataclass(slots=True)
class _Job:
    spec: PaperJob
    step_s: tuple[float, ...]
    choices: list[PublishedProposal]
    held: PublishedProposal | None = None
    delay_s: float = START_DELAY_S
    samples: float = 0.0
    end_s: float | None = None

    def advance(self, start_s: float, seconds: float) -> None:
        if self.held is None:
            return
        waited = min(self.delay_s, seconds)
        self.delay_s -= waited
        step = max(a * t for a, t in zip(self.held.ests, self.step_s, strict=True))
        rate = self.spec.num_ests * self.spec.batch_size / step
        needed = (self.spec.samples - self.samples) / rate
        if needed <= seconds - waited:
            self.end_s = start_s + waited + needed
            self.held = None
        else:
            self.samples += rate * (seconds - waited)


@dataclass(frozen=True, slots=True)
class _Request:
    job: _Job
    choice: PublishedProposal
    gain: float


@dataclass(frozen=True, slots=True)
class PublishedResult:
    """What the published program prints."""

    policy: str
    makespan_s: float
    mean_jct_s: float
    jct_s_by_job: dict[str, float]
    gpus_held: tuple[tuple[float, int], ...]


@dataclass(slots=True)
class _Cluster:
    policy: str
    jobs: list[_Job]
    clock_s: int = 0
    trace: list[tuple[float, int]] = field(default_factory=list)

    def free(self) -> list[int]:
        held = [job.held.gpus for job in self.jobs if job.held is not None]
        return [total - sum(gpus[kind] for gpus in held) for kind, total in enumerate(POOL)]

    def tick(self) -> bool:
        """One tick; False when there is no unfinished job any more."""
        active = [job for job in self.jobs if job.end_s is None and job.spec.submit_s <= self.clock_s]
        self._decide(active)
        self.trace.append((float(self.clock_s), sum(POOL) - sum(self.free())))
        for job in active:
            job.advance(self.clock_s, TICK_S)
        self.clock_s += TICK_S
        return any(job.end_s is None for job in self.jobs)

    def _decide(self, active: list[_Job]) -> None:
        free = self.free()
        if self.policy == "yarn-cs":
            if active and active[0].held is None:
                active[0].held = active[0].choices[0]
            return
        requests = [request for job in active if job.held for request in _requests(job)]
        for job in active:
            if job.held is None and _fits(job.choices[-1].gpus, free):
                job.held = job.choices[-1]
                _take(free, job.held.gpus)
        granted: set[str] = set()
        for request in sorted(requests, key=lambda each: -each.gain):
            held = request.job.held
            assert held is not None
            added = tuple(new - old for new, old in zip(request.choice.gpus, held.gpus, strict=True))
            if request.job.spec.name not in granted and _fits(added, free):
                granted.add(request.job.spec.name)
                request.job.held = request.choice
                _take(free, added)


def _requests(job: _Job) -> Iterable[_Request]:
    """The best growth on each kind alone, with the other kinds kept as they are."""
    held = job.held
    assert held is not None
    for kind in range(len(POOL)):
        best: tuple[float, float] | None = None
        chosen: PublishedProposal | None = None
        for choice in job.choices:
            if not _is_growth(choice, held, kind):
                continue
            gpus = tuple(choice.gpus[each] if each == kind else held.gpus[each] for each in range(len(POOL)))
            if sum(gpus) > GROWTH * held.total:
                continue
            # The 1 belongs to the formula: adding it before comparing decides ties.
            gain = (choice.speed_up / held.speed_up - 1) / (choice.gpus[kind] - held.gpus[kind]) + 1
            if best is None or (gain, choice.speed_up) > best:
                best, chosen = (
                    (gain, choice.speed_up),
                    PublishedProposal(gpus, choice.ests, choice.waste, choice.speed_up),
                )
        if chosen is not None and best is not None:
            yield _Request(job, chosen, best[0])


def _is_growth(choice: PublishedProposal, held: PublishedProposal, kind: int) -> bool:
    return (
        choice.speed_up >= held.speed_up
        and choice.waste <= MAX_WASTE
        and choice.total <= GROWTH * held.total
        and choice.gpus[kind] > held.gpus[kind]
        and all(choice.gpus[other] <= held.gpus[other] for other in range(len(POOL)) if other != kind)
    )


def _fits(gpus: Sequence[int], free: Sequence[int]) -> bool:
    return all(n <= f for n, f in zip(gpus, free, strict=True))


def _take(free: list[int], gpus: Sequence[int]) -> None:
    for kind, count in enumerate(gpus):
        free[kind] -= count


def run_published(jobs: Sequence[PaperJob], times: StepTimes, policy: str) -> PublishedResult:
    """Simulate the trace under the published rules."""
    if policy not in POLICIES:
        raise RefusedError(f"--published knows the policies {', '.join(POLICIES)}, not {policy!r}")
    lists: dict[tuple[object, ...], list[PublishedProposal]] = {}
    cluster = _Cluster(policy, [_admissible(job, times, policy, lists) for job in jobs])
    while cluster.tick():
        pass
    ends = {job.spec.name: job.end_s - job.spec.submit_s for job in cluster.jobs if job.end_s is not None}
    return PublishedResult(
        policy,
        makespan_s=float(cluster.clock_s - TICK_S),
        mean_jct_s=sum(ends.values()) / len(ends),
        jct_s_by_job=ends,
        gpus_held=tuple(cluster.trace),
    )


def _admissible(
    job: PaperJob, times: StepTimes, policy: str, lists: dict[tuple[object, ...], list[PublishedProposal]]
) -> _Job:
    step_s = tuple(times.seconds(job.model, kind, job.batch_size) for kind in KINDS)
    perf = tuple(step_s[-1] / seconds for seconds in step_s)
    key = (job.num_ests, perf)
    if key not in lists:
        lists[key] = proposals(job.num_ests, perf, POOL)
    choices = lists[key]
    preferred = KINDS.index(job.preferred)
    if policy != "heter" or not job.may_mix:
        choices = [each for each in choices if each.gpus[preferred] == each.total]
    if policy == "yarn-cs":
        choices = [each for each in choices if each.gpus[preferred] == job.num_ests]
    if not choices:
        raise RefusedError(f"job {job.name} asks for {job.num_ests} {job.preferred}, more than the cluster has")
    return _Job(job, step_s, choices)
