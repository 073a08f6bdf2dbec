"""Traces in and out: every format, the generator, and what a wrong file is told."""

from __future__ import annotations

import hashlib
import statistics
from pathlib import Path

import pytest

from easyscale.core.errors import RefusedError
from easyscale.schedule.cluster import ClusterJob
from easyscale.schedule.model import JobModel
from easyscale.sim.adjust import Network, as_backlog, with_network, with_rescale_costs
from easyscale.sim.hazards import Rate, draw_changes, read_changes
from easyscale.sim.step_times import StepTimes, read_step_times
from easyscale.sim.trace import Cause, DeviceChange, TraceJob
from easyscale.sim.traces.columns import Recorded, parse_columns
from easyscale.sim.traces.generate import Generated, generate
from easyscale.sim.traces.own import written
from easyscale.sim.traces.read import Reading, read_trace
from sim.cases import KINDS, job, run, shared

RECORDED = Recorded({"V100": 2.0, "T4": 1.0}, "V100")
CLUSTER = (("V100", "P100", "T4"), (32, 16, 16))


def reading(columns: str | None = None, times: StepTimes | None = None) -> Reading:
    return Reading(KINDS, times, None if columns is None else parse_columns(columns), RECORDED)


def file(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_what_was_written_is_read_back_as_the_same_jobs(tmp_path: Path) -> None:
    limited = JobModel(6, {"V100": 49.0, "T4": 1 / 49}, {"T4": 2}, can_mix_kinds=False)
    jobs = [
        TraceJob(ClusterJob("memory", limited, "V100"), 5.0),
        job("a", 3, 1 / 3, 0.1, "T4", can_mix=False, kind_of_model="bert", rescale_s=2.5),
        job("b", 8, 1e6, 7.0, priority=2, min_devices=1, max_devices=6, gang=4),
        *with_network([job("c", submit_s=9.0)], Network(2, 0.01, 0.05)),
    ]
    assert read_trace([file(tmp_path, written(jobs))], reading()) == jobs


@pytest.mark.parametrize("seed", [0, 7])
def test_generated_jobs_are_read_back_too(seed: int, tmp_path: Path) -> None:
    jobs = generate(Generated(60, seed=seed), *CLUSTER)
    again = read_trace([file(tmp_path, written(jobs))], Reading(CLUSTER[0], None, None, RECORDED))
    assert written(again) == written(jobs)


def test_elasticflows_columns_are_known(tmp_path: Path) -> None:
    """100 s on 4 GPUs: 100 steps of 4 ESTs, at a second a step on the kind it was recorded on."""
    path = file(tmp_path, "job_id,submission_time,duration,num_gpu\nx,50,100,4\nnever ran,60,0,1\n")
    (read,) = read_trace([path], reading())
    assert (read.job.name, read.job.submit_s, read.job.gang, read.steps) == ("x", 50.0, 4, 100.0)
    assert dict(read.job.model.capability_by_kind) == {"V100": 1.0, "T4": 0.5}
    assert run([read], "fifo").jobs[0].end_s == 50.0 + 1.0 + 100.0


def test_a_foreign_trace_is_read_by_a_mapping_of_columns(tmp_path: Path) -> None:
    path = file(tmp_path, "when,gpus,secs,user,what,where\n5,2,30,u1,gpt,t4\n1,1,10,u2,bert,v100\n")
    jobs = read_trace([path], reading("submit=when,devices=gpus,duration=secs,name=user,model=what,kind=where"))
    assert [(each.job.name, each.kind_of_model, each.job.preferred) for each in jobs] == [
        ("u2", "bert", "V100"),
        ("u1", "gpt", "T4"),
    ]
    assert jobs[1].job.model.capability_by_kind["T4"] == 1.0


def test_equal_names_of_two_files_are_told_apart(tmp_path: Path) -> None:
    text = "job_id,submission_time,duration,num_gpu\nx,50,100,4\n"
    jobs = read_trace([file(tmp_path, text, "one.csv"), file(tmp_path, text, "two.csv")], reading())
    assert [each.job.name for each in jobs] == ["one/x/0", "two/x/1"]


WRONG = [
    ("when,gpus\n1,2\n", None, "which is no format known: say which is what with --columns"),
    ("", None, "is empty"),
    ("when,gpus,secs\n1,2,3\n", "submit=when,devices=gpus,duration=seconds", "has no column seconds; it has when"),
    ("when,gpus,secs\n1,two,3\n", "submit=when,devices=gpus,duration=secs", "row 2: could not convert"),
    ("name,submit_s,num_ests,steps,preferred,step_s_V100\na,0,0,1,V100,1\n", None, "row 2: num_ests is 0"),
    (
        "name,submit_s,num_ests,steps,preferred,step_s_A100\na,0,1,1,A100,1\n",
        None,
        "has no capability_... or step_s_... of V100, T4",
    ),
    ("name,submit_s,num_ests,steps,preferred,step_s_T4\na,0,1,0,T4,1\n", None, "row 2: job a has 0.0 steps of work"),
    ("name,time,application,num_replicas,batch_size\na,1,bert,2,24\n", None, "give their step times with --step-times"),
]


@pytest.mark.parametrize(("text", "columns", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_a_wrong_trace_is_told_what_is_wrong(text: str, columns: str | None, words: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=words.replace("...", r"\.\.\.")):
        read_trace([file(tmp_path, text)], reading(columns))


def test_columns_that_are_missing_are_asked_for() -> None:
    with pytest.raises(RefusedError, match="misses devices, duration"):
        parse_columns("submit=when")
    with pytest.raises(RefusedError, match="has colour"):
        parse_columns("submit=a,devices=b,duration=c,colour=d")


def test_generated_jobs_are_the_same_everywhere() -> None:
    """The hash is part of the promise: it changes only when the generator is meant to."""
    text = written(generate(Generated(100, days=2.0, seed=3), *CLUSTER))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "3e05d7a7a254058b"
    assert text != written(generate(Generated(100, days=2.0, seed=4), *CLUSTER))


def test_generated_jobs_look_like_those_of_a_cluster() -> None:
    jobs = generate(Generated(5000, days=5.0, seed=1), *CLUSTER)
    by_hour = [0] * 24
    for each in jobs:
        by_hour[int(each.job.submit_s % 86_400 // 3600)] += 1
    assert sum(by_hour[12:17]) > 2.5 * sum(by_hour[0:5])
    sizes = [each.job.model.num_ests for each in jobs]
    assert statistics.median(sizes) <= 2 < statistics.fmean(sizes)
    durations = sorted(each.steps for each in jobs)
    assert 600 < statistics.median(durations) < 1300
    assert sum(durations[-500:]) > 0.5 * sum(durations), "the longest tenth is most of the work"
    assert len({each.job.name for each in jobs}) == len(jobs)


def test_step_times_are_interpolated_and_drawn_out(tmp_path: Path) -> None:
    rows = "ncf,10,v100,1.0\nncf,20,v100,3.0\nbert,8,T4,0.5\n"
    times = read_step_times(file(tmp_path, f"model,batch_size,gpu,step_time_s\n{rows}"))
    assert times.seconds("NeuMF", "V100", 15) == 2.0
    assert times.seconds("ncf", "v100", 25) == 4.0
    assert times.seconds("Bert", "T4", 16) == 1.0
    assert read_step_times(tmp_path / "trace.csv", fixed_share=1.0).seconds("bert", "t4", 16) == 0.5
    with pytest.raises(RefusedError, match="no step time for 'bert' on 'V100'"):
        times.seconds("bert", "V100", 8)
    with pytest.raises(RefusedError, match="give -1 s at batch size 5"):
        StepTimes({("neumf", "V100"): ((10.0, 1.0), (20.0, 5.0))}).seconds("ncf", "V100", 5)


def test_step_times_of_several_modes_need_one_to_be_chosen(tmp_path: Path) -> None:
    path = file(tmp_path, "model,batch_size,gpu,step_time_s,mode\nbert,8,T4,1,D1\nbert,8,T4,2,D1+D2\n")
    assert read_step_times(path, "D1+D2").seconds("bert", "T4", 8) == 2.0
    with pytest.raises(RefusedError, match="has step times of 2 modes: choose one of 'D1', 'D1\\+D2'"):
        read_step_times(path)
    with pytest.raises(RefusedError, match="has no mode 'D3'"):
        read_step_times(path, "D3")
    with pytest.raises(RefusedError, match="has no column gpu"):
        read_step_times(file(tmp_path, "model,batch_size,step_time_s\nbert,8,1\n"))


def test_rescale_costs_by_model_networks_and_backlogs() -> None:
    jobs = [job("a", kind_of_model="bert"), job("b", submit_s=5.0, kind_of_model="swin", rescale_s=3.0)]
    assert [each.rescale_s for each in with_rescale_costs(jobs, {"bert": 2.0})] == [2.0, 3.0]
    with pytest.raises(RefusedError, match="given for gpt, but the trace has bert, swin"):
        with_rescale_costs(jobs, {"gpt": 1.0})
    assert [each.job.submit_s for each in as_backlog(jobs)] == [0.0, 0.0]
    (slow,) = with_network([job("c", 4)], Network(2, 0.1, 0.5))
    assert [slow.job.model.sync_s(n) for n in (1, 2, 3, 4)] == [0.0, 0.1, 0.5, 0.5]
    assert run([slow], "fifo").jobs[0].end_s == pytest.approx(1.0 + 100 * (0.5 + 0.5))


@pytest.mark.parametrize("cause", ["failure", "reclaim"])
def test_failures_and_reclaims_are_drawn_at_their_rate_and_end(cause: Cause) -> None:
    def drawn(seed: int, rate: float = 0.1) -> list[DeviceChange]:
        return list(draw_changes(("V100",), (100,), Rate(cause, rate, 600.0), 86_400.0 * 10, seed))

    changes = drawn(0)
    assert changes == drawn(0) != drawn(1)
    assert 60 < sum(change.count < 0 for change in changes) < 140
    assert sum(change.count for change in changes) == 0
    assert {change.cause for change in changes} == {cause}
    assert drawn(0, 0.0) == []
    with pytest.raises(RefusedError, match="-1 times a day"):
        Rate(cause, -1, 600.0)


def test_jobs_run_where_their_memory_and_allowed_sizes_let_them() -> None:
    """Six ESTs, two on a T4 and none on a V100: three T4 or more. Four ESTs on 2 or 4 devices: never on 1 or 3."""
    tight = JobModel(6, {"V100": 2.0, "T4": 1.0}, {"V100": 0, "T4": 2})
    even = JobModel(4, {"V100": 2.0, "T4": 1.0}, allowed_sizes=(2, 4))
    jobs = [TraceJob(ClusterJob("tight", tight, "T4"), 40.0), TraceJob(ClusterJob("even", even, "V100"), 40.0)]
    for stats in run(jobs).jobs:
        lives = [held for _, held, _ in stats.segments if any(held)]
        assert lives
        if stats.name == "tight":
            assert all(held[0] == 0 and held[1] >= 3 for held in lives)
        else:
            assert all(sum(held) in (2, 4) for held in lives)


def test_spot_devices_come_from_a_trace(tmp_path: Path) -> None:
    path = file(tmp_path, "t_s,kind,count\n20,v100,2\n5,V100,-2\n")
    assert [(each.at_s, each.kind, each.count, each.cause) for each in read_changes(path)] == [
        (5.0, "V100", -2, "reclaim"),
        (20.0, "V100", 2, "reclaim"),
    ]
    with pytest.raises(RefusedError, match="row 2: give t_s, kind, count"):
        read_changes(file(tmp_path, "t_s,kind,count,cause\n1,V100,-1,magic\n"))


def test_the_shared_traces_have_the_jobs_that_their_readmes_say() -> None:
    def count(*names: str, times: StepTimes | None = None, kinds: tuple[str, ...] = ("V100",)) -> int:
        chosen = Reading(kinds, times, None, Recorded(dict.fromkeys(kinds, 1.0), kinds[0]))
        return len(read_trace([shared(name) for name in names], chosen))

    assert count("traces/elasticflow/raw/cluster01.csv") == 1595
    assert count("traces/elasticflow/with_models/cluster06.csv") == 2396
    assert count("traces/elasticflow/195job.csv") == 195
    assert count("traces/elasticflow/raw/cluster06.csv", "traces/elasticflow/raw/cluster10.csv") == 2396 + 260
    sia = read_step_times(shared("step_times/sia_step_times.csv"))
    assert count("traces/pollux/workloads/workload-3.csv", times=sia, kinds=("T4",)) == 160


def test_a_job_without_work_is_refused() -> None:
    with pytest.raises(RefusedError, match="submitted at -1"):
        TraceJob(job("a").job.__class__("a", job("a").job.model, "V100", -1.0), 1.0)
