"""The cluster's books: refusals by the policy's name, and indexes that say what sorting anew would say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.core.errors import RefusedError
from easyscale.schedule.books import Books, Entry, Index
from easyscale.schedule.cluster import ClusterJob, Counts, Decision, JobRecord, PolicyError, parse_cluster
from easyscale.schedule.model import JobModel

KINDS = ("V100", "P100", "T4")


def books() -> Books:
    return Books(KINDS, (4, 2, 2))


def cluster_job(name: str = "a", can_mix: bool = True, **asks: int) -> ClusterJob:
    return ClusterJob(name, JobModel(8, {"V100": 2.0, "P100": 1.5}, can_mix_kinds=can_mix), "V100", **asks)


REFUSED: list[tuple[str, ClusterJob, Counts, Counts]] = [
    ("5 V100, which is 5 V100 more than it holds, but 4 are free", cluster_job(), (0, 0, 0), (5, 0, 0)),
    ("3 V100, which is 3 V100 more than it holds, but 2 are free", cluster_job(), (0, 0, 0), (3, 0, 0)),
    ("nothing, but 2 are guaranteed to it", cluster_job(min_devices=2), (2, 0, 0), (0, 0, 0)),
    ("1 V100, but 2 are guaranteed to it", cluster_job(min_devices=2), (2, 0, 0), (1, 0, 0)),
    ("1 T4, but the job has no capability on T4", cluster_job(), (0, 0, 0), (0, 0, 1)),
    ("1 V100 \\+ 1 P100, but the job may not mix kinds", cluster_job(can_mix=False), (0, 0, 0), (1, 1, 0)),
    ("1 P100, but the job started on V100", cluster_job(can_mix=False), (1, 0, 0), (0, 1, 0)),
    ("2 V100 \\+ 1 P100, but the job allows at most 2", cluster_job(max_devices=2), (0, 0, 0), (2, 1, 0)),
    ("give a count of 0 or more for each of V100, P100, T4", cluster_job(), (0, 0, 0), (-1, 0, 0)),
    ("give a count of 0 or more for each of V100, P100, T4", cluster_job(), (0, 0, 0), (1, 0)),
]


@pytest.mark.parametrize(("words", "job", "before", "after"), REFUSED, ids=[words for words, *_ in REFUSED])
def test_a_policy_that_breaks_a_rule_is_refused_by_name(
    words: str, job: ClusterJob, before: Counts, after: Counts
) -> None:
    state = books()
    record = state.submit(job)
    if "2 are free" in words:
        state.hold(state.submit(cluster_job("other")), (2, 0, 0))
    state.hold(record, before)
    with pytest.raises(PolicyError, match=rf"policy 'greedy' gave a .*{words}"):
        state.check(Decision(record, after), "greedy")


def test_a_job_that_has_ended_gets_nothing() -> None:
    state = books()
    record = state.submit(cluster_job())
    state.finish(record)
    with pytest.raises(PolicyError, match="policy 'late' gave devices to a, which is not in the cluster"):
        state.check(Decision(record, (1, 0, 0)), "late")


def test_two_jobs_of_one_name_are_refused() -> None:
    state = books()
    state.submit(cluster_job())
    with pytest.raises(PolicyError, match="a job named a is in the cluster already"):
        state.submit(cluster_job())


def test_jobs_that_cannot_be_are_refused() -> None:
    with pytest.raises(RefusedError, match="prefers A100 but has no capability there"):
        ClusterJob("a", JobModel(2, {"V100": 1.0}), "A100")
    with pytest.raises(RefusedError, match="at least 3 and at most 2 devices"):
        cluster_job(min_devices=3, max_devices=2)


def test_a_cluster_is_written_as_kinds_and_counts() -> None:
    assert parse_cluster("v100:32, P100:16") == (("V100", "P100"), (32, 16))
    for wrong in ("", "V100", "V100:0", "V100:-1", "V100:x", "V100:1,V100:2"):
        with pytest.raises(RefusedError, match="write it as V100:32,P100:16"):
            parse_cluster(wrong)


def _by_size(record: JobRecord) -> Iterator[Entry]:
    if not record.is_running:
        yield record.job.gang, (-float(record.job.priority),)
        yield "all", (float(record.job.gang),)


moves = st.lists(
    st.tuples(st.sampled_from(["submit", "hold", "release", "finish"]), st.integers(0, 40), st.integers(1, 4)),
    max_size=400,
)


@settings(max_examples=60, deadline=None)
@given(moves)
def test_an_index_says_what_sorting_anew_would_say(moves: list[tuple[str, int, int]]) -> None:
    state, index = Books(KINDS, (1000, 0, 0)), Index("by size", _by_size)
    records: list[JobRecord] = []
    for number, (move, which, size) in enumerate(moves):
        if move == "submit":
            records.append(state.submit(cluster_job(f"job-{number}", gang=size, priority=which % 3)))
        elif records:
            record = records[which % len(records)]
            if move == "finish":
                state.finish(records.pop(which % len(records)))
            else:
                state.hold(record, (size if move == "hold" else 0, 0, 0))
        for bucket in (1, 2, 3, 4, "all"):
            found = [(key, record.order) for key, record in state.ascending(index, bucket)]
            anew = [(key, r.order) for r in records for name, key in _by_size(r) if name == bucket]
            assert found == sorted(anew)
            first = state.first(index, bucket)
            assert (None if first is None else (first[0], first[1].order)) == (found[0] if found else None)
    assert sum(state.free) == 1000 - sum(record.num_held for record in records)
    assert state.num_running == sum(record.is_running for record in records)
    assert state.num_waiting == len(records) - state.num_running
