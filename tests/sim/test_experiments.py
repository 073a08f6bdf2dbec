"""The experiments of the docs, held to their figures: the paper's trace, Pollux's, ElasticFlow's, serving."""

from __future__ import annotations

from functools import cache

import pytest

from easyscale.schedule.policies import named
from easyscale.sim.adjust import as_backlog
from easyscale.sim.experiment import Experiment, Outcome, run_policy
from easyscale.sim.serving import DAY_S, Serving, read_curve
from easyscale.sim.settings import Settings
from easyscale.sim.step_times import read_step_times
from easyscale.sim.traces.columns import Recorded
from easyscale.sim.traces.paper import read_paper_jobs, to_trace_jobs
from easyscale.sim.traces.read import Reading, read_trace
from sim.cases import shared

pytestmark = pytest.mark.slow

PAPER_KINDS, PAPER_CLUSTER = ("V100", "P100", "T4"), (32, 16, 16)


@cache
def paper(policy: str, rescale_s: float, fixed_share: float) -> Outcome:
    times = read_step_times(shared("step_times/easyscale_step_times.csv"), "D1+D2 hetero", fixed_share)
    jobs = to_trace_jobs(read_paper_jobs(shared("paper/workload_test.csv")), times, PAPER_KINDS)
    return run_policy(Experiment(PAPER_KINDS, PAPER_CLUSTER, jobs, Settings(rescale_s=rescale_s)), named(policy))


def jct(policy: str, rescale_s: float = 1.0, fixed_share: float = 1.0) -> float:
    return paper(policy, rescale_s, fixed_share).summary.mean_jct_s


@pytest.mark.parametrize("rescale_s", [1.0, 20.0])
@pytest.mark.parametrize(("baseline", "times"), [("one-at-a-time", 12.0), ("fifo", 9.5), ("backfill", 4.9)])
def test_jobs_of_the_papers_trace_end_that_much_sooner(baseline: str, times: float, rescale_s: float) -> None:
    assert jct(baseline, rescale_s) / jct("easyscale", rescale_s) >= times


def test_the_makespan_is_not_above_5400_s_and_below_the_homogeneous_one() -> None:
    outcome = paper("easyscale", 1.0, 1.0)
    assert max(job.end_s or 0.0 for job in outcome.recorder.jobs) <= 5400
    assert outcome.summary.makespan_s < paper("easyscale-homo", 1.0, 1.0).summary.makespan_s


@pytest.mark.parametrize("fixed_share", [0.0, 1.0])
@pytest.mark.parametrize("rescale_s", [1.0, 20.0])
def test_heterogeneous_beats_homogeneous(rescale_s: float, fixed_share: float) -> None:
    assert jct("easyscale", rescale_s, fixed_share) < jct("easyscale-homo", rescale_s, fixed_share)


@pytest.mark.parametrize("number", range(1, 9))
def test_polluxs_workloads_end_sooner_than_with_backfill(number: int) -> None:
    times = read_step_times(shared("step_times/sia_step_times.csv"))
    reading = Reading(("T4",), times, None, Recorded({"T4": 1.0}, "T4"))
    jobs = read_trace([shared(f"traces/pollux/workloads/workload-{number}.csv")], reading)
    assert len(jobs) == 160
    experiment = Experiment(("T4",), (64,), jobs)
    elastic, gang, backfill = (
        run_policy(experiment, named(name)).summary.mean_jct_s for name in ("easyscale", "fifo", "backfill")
    )
    assert elastic < gang
    assert elastic < backfill


@pytest.mark.parametrize("name", ["raw/cluster01.csv", "195job.csv"])
def test_elasticflows_jobs_end_sooner_on_64_gpus(name: str) -> None:
    reading = Reading(("V100",), None, None, Recorded({"V100": 1.0}, "V100"))
    jobs = read_trace([shared(f"traces/elasticflow/{name}")], reading)
    experiment = Experiment(("V100",), (64,), jobs)
    elastic = run_policy(experiment, named("easyscale")).summary.mean_jct_s
    assert elastic < run_policy(experiment, named("fifo")).summary.mean_jct_s
    assert elastic < run_policy(experiment, named("backfill")).summary.mean_jct_s


def test_serving_gets_its_gpus_back_and_no_job_fails() -> None:
    reading = Reading(("V100",), None, None, Recorded({"V100": 1.0}, "V100"))
    jobs = as_backlog(read_trace([shared("traces/elasticflow/raw/cluster01.csv")], reading))
    demand = read_curve(shared("traces/alibaba_serving/dlrm_gpus_held_10min.csv"))
    duty = read_curve(shared("traces/alibaba_serving/genai_gpu_duty_10min.csv"), 0.01, is_daily=True)
    serving = Serving("V100", demand, duty, 0.0, 2 * DAY_S)
    experiment = Experiment(("V100",), (3400,), jobs, serving=serving, until_s=2 * DAY_S)
    figures = run_policy(experiment, named("easyscale")).serving
    assert figures is not None
    assert figures["allocation_without"] < 0.93
    assert figures["allocation_with"] > 0.999
    assert figures["utilisation_gain"] > 0.62
    assert 0 < figures["give_back_max_s"] <= 5
    assert figures["jobs_failed"] == 0
    assert figures["preemptions_per_day"] > 0
