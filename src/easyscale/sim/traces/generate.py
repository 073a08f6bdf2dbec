"""Jobs drawn from a seed, so that nobody needs another's trace to try the simulator. Runs in ``easyscale simulate``.

Arrivals come in a daily rhythm (most at two in the afternoon, a quarter of that at night) and in bursts of the same
user's jobs; most jobs are small and short, a few are large, and durations are log-normal with a heavy tail, as
published traces of GPU clusters are. Users ask for fast kinds more often than for slow ones, and for no more devices
than there are.
Promise: the same numbers for the same seed on every machine (``random.Random``).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from easyscale.core.errors import RefusedError
from easyscale.schedule.cluster import ClusterJob, Counts
from easyscale.schedule.model import JobModel
from easyscale.sim.trace import TraceJob

_DAY_S = 86_400.0
_SIZES, _SHARES = (1, 2, 4, 8, 16, 32), (0.42, 0.12, 0.18, 0.16, 0.09, 0.03)
_MODELS = {
    "conv": (False, {"V100": 1.0, "P100": 0.52, "T4": 0.48, "A100": 1.9, "H100": 3.2}),
    "transformer": (True, {"V100": 1.0, "P100": 0.73, "T4": 0.66, "A100": 2.3, "H100": 4.4}),
    "recommender": (True, {"V100": 1.0, "P100": 0.84, "T4": 0.9, "A100": 1.3, "H100": 1.6}),
}
"""By family: whether kinds may be mixed at no cost (D2), and mini-batches/s of one EST."""


@dataclass(frozen=True, slots=True)
class Generated:
    """What to draw.

    Attributes:
        jobs: how many.
        days: over how long they arrive.
        seed: of everything.
        median_s: the median duration on the job's own number of V100.
        spread: standard deviation of the logarithm of durations.
        guaranteed: the share of jobs with a guaranteed minimum of a quarter of their ESTs, and a higher priority.
    """

    jobs: int = 200
    days: float = 1.0
    seed: int = 0
    median_s: float = 900.0
    spread: float = 1.6
    guaranteed: float = 0.1

    def __post_init__(self) -> None:
        if self.jobs < 1 or not self.days > 0 or not self.median_s > 0 or not 0 <= self.guaranteed <= 1:
            raise RefusedError(
                f"{self.jobs} jobs over {self.days} days of {self.median_s} s with {self.guaranteed} guaranteed: give "
                f"1 job or more, times above 0 and a share from 0 to 1"
            )


def generate(wanted: Generated, kinds: tuple[str, ...], capacity: Counts) -> list[TraceJob]:
    """The jobs by rising submission, for this cluster."""
    unknown = [kind for kind in kinds if kind not in _MODELS["conv"][1]]
    if unknown:
        raise RefusedError(
            f"no speeds are known for {', '.join(unknown)} to draw jobs for: use {', '.join(_MODELS['conv'][1])}"
        )
    draw = random.Random(wanted.seed)
    times = sorted(_arrivals(wanted, draw))
    models: dict[tuple[str, int], JobModel] = {}
    cluster = dict(zip(kinds, capacity, strict=True))
    return [_job(number, at_s, wanted, draw, cluster, models) for number, at_s in enumerate(times)]


def _arrivals(wanted: Generated, draw: random.Random) -> Iterator[float]:
    """Thinned by the rhythm of the day; a user submits up to five at once."""
    left = wanted.jobs
    while left:
        at_s = draw.random() * wanted.days * _DAY_S
        if draw.random() * 1.6 < 1 + 0.6 * math.cos((at_s / _DAY_S - 14 / 24) * 2 * math.pi):
            burst = min(left, draw.choice((1, 1, 1, 2, 5)))
            left -= burst
            yield from (round(at_s + 20.0 * number, 3) for number in range(burst))


def _job(
    number: int,
    at_s: float,
    wanted: Generated,
    draw: random.Random,
    cluster: dict[str, int],
    models: dict[tuple[str, int], JobModel],
) -> TraceJob:
    family = draw.choice(sorted(_MODELS))
    num_ests = draw.choices(_SIZES, _SHARES)[0]
    can_mix, speeds = _MODELS[family]
    duration_s = wanted.median_s * math.exp(draw.gauss(0.0, wanted.spread))
    is_guaranteed = draw.random() < wanted.guaranteed
    large = [kind for kind in cluster if cluster[kind] >= num_ests] or [max(cluster, key=lambda kind: cluster[kind])]
    preferred = draw.choices(large, [speeds[kind] for kind in large])[0]
    if (family, num_ests) not in models:
        models[family, num_ests] = JobModel(num_ests, {kind: speeds[kind] for kind in cluster}, can_mix_kinds=can_mix)
    job = ClusterJob(
        f"{family}-{number}",
        models[family, num_ests],
        preferred,
        at_s,
        priority=int(is_guaranteed),
        min_devices=max(1, min(num_ests, cluster[preferred]) // 4) if is_guaranteed else 0,
        gang=min(num_ests, cluster[preferred]),
    )
    return TraceJob(job, max(1.0, round(duration_s, 3)), kind_of_model=family)
