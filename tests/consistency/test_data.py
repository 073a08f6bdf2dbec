"""Mini-batches, compared in every bit of their values, whoever loads them and wherever their job was interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consistency.compare import assert_same_run
from consistency.conftest import Jobs, Run
from consistency.fleet import MemberError
from consistency.loaders import LOADERS
from consistency.loading import placed

EPOCHS = 2
DDP = {"rng": "ddp"}

WORKERS_AND_DATA_WORKERS = [(1, 3), (2, 1), (3, 0), (4, 1)]


def assert_same_values(
    jobs: Jobs, placement: str, kind: str, *, accumulate: int = 1, form: str = "two_loop", **how: Any
) -> None:
    expected = jobs.reference(4, "load", epochs=EPOCHS, kind=kind, accumulate=accumulate)
    found = jobs.run(placement, "load", form, epochs=EPOCHS, kind=kind, accumulate=accumulate, **how)
    assert found["scalars"] == expected["scalars"], f"{kind} ({form}) on {placement} with {how}"


@pytest.mark.parametrize("kind", ["shuffled", "stream"])
def test_values_depend_on_nobody_who_loads_them_in_short(jobs: Jobs, kind: str) -> None:
    assert_same_values(jobs, "3,0,2,1", kind)
    assert_same_values(jobs, "0,3|1,2", kind, num_workers=3)


@pytest.mark.slow
@pytest.mark.parametrize("data_workers", [0, 1, 3])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["shuffled", "stream"])
def test_values_depend_neither_on_workers_nor_on_data_workers(
    jobs: Jobs, kind: str, workers: int, data_workers: int
) -> None:
    """Scenarios 14, 15 and 26."""
    assert_same_values(jobs, placed(workers), kind, num_workers=data_workers)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in LOADERS if kind not in ("shuffled", "stream")])
def test_values_of_every_kind_of_loader_depend_on_nobody_who_loads_them(jobs: Jobs, kind: str) -> None:
    for workers, data_workers in WORKERS_AND_DATA_WORKERS:
        assert_same_values(jobs, placed(workers), kind, num_workers=data_workers)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shuffled", "weighted_generator", "stream", "shards"])
def test_values_of_several_mini_batches_in_a_step_depend_on_nobody_who_loads_them(jobs: Jobs, kind: str) -> None:
    for workers, data_workers in WORKERS_AND_DATA_WORKERS:
        assert_same_values(jobs, placed(workers), kind, accumulate=2, num_workers=data_workers)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shuffled", "weighted_generator", "stream", "uneven_stream"])
def test_data_workers_that_live_on_give_the_same_values(jobs: Jobs, kind: str) -> None:
    for workers, data_workers in WORKERS_AND_DATA_WORKERS:
        if data_workers:
            assert_same_values(jobs, placed(workers), kind, num_workers=data_workers, persistent=True)
    assert_same_values(jobs, placed(2), kind, accumulate=2, num_workers=2, persistent=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shuffled", "batch_sampler", "uneven_stream"])
def test_the_drop_in_form_is_given_the_same_values(jobs: Jobs, kind: str) -> None:
    for workers, data_workers in WORKERS_AND_DATA_WORKERS:
        assert_same_values(jobs, placed(workers), kind, form="drop_in", num_workers=data_workers)


def test_the_comparison_of_values_would_see_a_difference(jobs: Jobs) -> None:
    """Every mini-batch differs from every other one, in both epochs."""
    scalars = jobs.reference(4, "load", epochs=EPOCHS, kind="shuffled", accumulate=1)["scalars"]
    seen = [values["batch0"] for step in scalars for values in step.values()]
    assert len(set(seen)) == len(seen) == 4 * 2 * EPOCHS


# -- against plain PyTorch ---------------------------------------------------------------------------------------------


def assert_equals_ranks(jobs: Jobs, kind: str, placement: str, *, may_move: bool = False, **options: Any) -> None:
    """The loaders of four DDP ranks, and the random numbers that are drawn beside them."""
    ranks = [{"rank": rank, "size": 4, "kind": kind, "epochs": EPOCHS, "options": options} for rank in range(4)]
    expected = jobs.fleet.call("consistency.rank_loading:load", ranks, first=8)
    run = jobs.run(placement, "load", epochs=EPOCHS, overrides=DDP, may_move=may_move, kind=kind, **options)
    found = [[(step[rank]["batch0"], step[rank]["batch0_body"]) for step in run["scalars"]] for rank in range(4)]
    assert found == expected, f"{kind} on {placement} with {options}"


@pytest.mark.parametrize("kind", ["shuffled", "stream"])
def test_values_equal_those_of_ddp_ranks_in_short(jobs: Jobs, kind: str) -> None:
    assert_equals_ranks(jobs, kind, "3,0,2|1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data_workers", "persistent"), [(0, False), (1, False), (3, False), (1, True), (3, True)], ids=str
)
@pytest.mark.parametrize("kind", ["shuffled", "in_order", "bulk", "single", "stream", "shards"])
def test_values_equal_those_of_ddp_ranks(jobs: Jobs, kind: str, data_workers: int, persistent: bool) -> None:
    if persistent and kind in ("stream", "shards"):
        with pytest.raises(MemberError, match="persistent_workers=False") as refusal:
            assert_equals_ranks(jobs, kind, placed(1), num_workers=data_workers, persistent=True)
        assert refusal.value.kind == "RefusedError"
        return
    for placement in [placed(1), placed(3)][data_workers // 2 :]:
        assert_equals_ranks(jobs, kind, placement, num_workers=data_workers, persistent=persistent)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shuffled", "in_order", "stream"])
def test_values_equal_those_of_ddp_ranks_with_a_generator(jobs: Jobs, kind: str) -> None:
    for data_workers in (0, 2):
        assert_equals_ranks(jobs, kind, placed(2), num_workers=data_workers, generator_seed=9)


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", ["shuffled", "bulk", "single"])
def test_values_equal_those_of_ddp_ranks_while_states_are_kept(jobs: Jobs, kind: str, persistent: bool) -> None:
    assert_equals_ranks(jobs, kind, placed(2), may_move=True, num_workers=2, persistent=persistent)


# -- interrupted -------------------------------------------------------------------------------------------------------


@pytest.fixture
def interrupted(jobs: Jobs, tmp_path: Path) -> Iterator[Any]:
    """Runs a job up to a step on some workers, and then on others to its end."""

    def run(before: str, after: str, stop: int, loaders: tuple[dict[str, Any], dict[str, Any]], **job: Any) -> Run:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        common = {"epochs": EPOCHS, "may_move": True, "folder": str(folder), **job}
        first = jobs.run(before, "load", stop=stop, **common, **loaders[0])
        second = jobs.run(after, "load", resume=True, **common, **loaders[1])
        return {**second, **{name: first[name] + second[name] for name in ("steps", "scalars")}}

    return run


def steps_of(scalars: list[Any]) -> list[Any]:
    """Without what the loop's body draws: it depends on the global step, which nobody restores here."""
    return [
        {rank: {name: x for name, x in values.items() if "body" not in name} for rank, values in step.items()}
        for step in scalars
    ]


PARTS = ["shuffled", "weighted_generator", "own_batch_sampler", "stream", "shards"]


@pytest.mark.parametrize("kind", ["shuffled", "stream"])
def test_a_job_goes_on_elsewhere_in_short(jobs: Jobs, interrupted: Any, kind: str) -> None:
    expected = jobs.reference(4, "load", epochs=EPOCHS, kind=kind, accumulate=1)
    found = interrupted("0|1,2,3", "3,1|0|2", 1, ({}, {}), kind=kind)
    assert steps_of(found["scalars"]) == steps_of(expected["scalars"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", PARTS)
def test_a_job_goes_on_elsewhere(jobs: Jobs, interrupted: Any, kind: str) -> None:
    """Scenarios 1, 9, 10 and 17: four ESTs go from some workers to others, data workers too, in mid-epoch."""
    expected = jobs.reference(4, "load", epochs=EPOCHS, kind=kind, accumulate=1)
    ways = [("0,1,2,3", "0|1|2|3", 1, (0, 1)), ("0|1|2|3", "2,0,3,1", 2, (1, 3)), ("0,3|1,2", "1|3,0|2", 1, (3, 0))]
    for before, after, stop, numbers in ways:
        loaders = tuple({"num_workers": number} for number in numbers)
        found = interrupted(before, after, stop, loaders, kind=kind)
        assert steps_of(found["scalars"]) == steps_of(expected["scalars"]), f"{kind} from {before} to {after}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "data_workers", "persistent"),
    [("shuffled", 0, False), ("shuffled", 2, False), ("single", 2, True), ("stream", 0, False)],
)
def test_a_job_with_ddps_streams_goes_on_elsewhere(
    jobs: Jobs, interrupted: Any, kind: str, data_workers: int, persistent: bool
) -> None:
    """Scenarios 23 and 25: every EST goes on with its own stream, in its loop's body as well, on fewer and more."""
    how = {"num_workers": data_workers, "persistent": persistent}
    expected = jobs.reference(4, "load", epochs=EPOCHS, overrides=DDP, may_move=True, kind=kind, **how)
    for before, after, stop in (("0,1|2,3", "0|1|2|3", 1), ("2|3,0|1", "3,1|0,2", 2)):
        found = interrupted(before, after, stop, (how, how), kind=kind, overrides=DDP)
        assert found["scalars"] == expected["scalars"], f"{kind} from {before} to {after}"


# -- evaluation --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("held_out", ["in_order", "uneven_stream", "uneven_shards"])
def test_evaluation_counts_each_sample_once_on_any_number_of_workers(jobs: Jobs, held_out: str) -> None:
    job = {"epochs": 1, "kind": "shuffled", "evaluates": "held_out", "held_out": held_out}
    expected = jobs.reference(4, "evaluate", **job)
    for counts, _ in expected["returned"]:
        assert set(counts) == {0, 1}
        assert sum(counts) == {"in_order": 23, "uneven_stream": 27, "uneven_shards": 33}[held_out]
    for workers in (1, 2, 3):
        assert_same_run(jobs.run(placed(workers), "evaluate", **job), expected, f"{held_out} on {workers} workers")


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"num_workers": 2, "persistent": True}], ids=str)
@pytest.mark.parametrize("kind", ["shuffled", "weighted_generator", "stream"])
def test_training_does_not_notice_an_evaluation_of_its_own_loader(jobs: Jobs, kind: str, how: dict[str, Any]) -> None:
    plain = jobs.reference(4, "evaluate", epochs=EPOCHS, kind=kind, evaluates="")
    for workers in (1, 3):
        found = jobs.run(placed(workers), "evaluate", epochs=EPOCHS, kind=kind, evaluates="itself", **how)
        assert found["scalars"] == plain["scalars"], f"{kind} on {workers} workers"
