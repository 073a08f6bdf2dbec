"""Planned changes of the workers: no mini-batch is done twice, no bit changes."""

from __future__ import annotations

import pytest

from elastic.conftest import Jobs

CHANGES = ((2, 4), (4, 1), (6, 3))


def test_workers_come_and_go_while_a_model_trains(jobs: Jobs) -> None:
    ran = jobs.check("cnn", schedule=CHANGES)
    assert ran.placements == ["0,1|2,3", "0|1|2|3", "0,1,2,3", "0,1|2|3"]
    assert [event.global_step for event in ran.rescales] == [2, 4, 6]
    assert [event.joined for event in ran.rescales] == [[2, 3], [], [4, 5]]
    assert [event.left for event in ran.rescales] == [[], [1, 2, 3], []]
    assert not ran.losses


def test_the_drop_in_form_moves_too(jobs: Jobs) -> None:
    jobs.check("cnn", "--form", "drop_in", schedule=CHANGES)


def test_an_event_says_where_the_time_went(jobs: Jobs) -> None:
    (event,) = jobs.check("cnn", schedule=((3, 4),)).rescales
    assert set(event.seconds) == {
        "decide",
        "start",
        "drain",
        "rendezvous",
        "restore",
        "begin",
        "pause",
        "first_step",
    }
    assert event.reason == "schedule"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["two_loop", "drop_in"])
@pytest.mark.parametrize(
    "recipe",
    ["cnn", "transformer", "patchy", "patchy_zeros", "never_zeroed", "replacing", "mixed_dtypes", "scalars", "wide"],
)
def test_every_kind_of_model_moves(jobs: Jobs, recipe: str, form: str) -> None:
    jobs.check(recipe, "--form", form, schedule=((1, 4), (3, 1), (5, 3), (6, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["3,0|2|1", "2|0,3,1", "0,2|1,3", "1|0|3|2"])
def test_any_placement_can_be_next(jobs: Jobs, placement: str) -> None:
    jobs.check("cnn", schedule=((2, placement), (5, "0,1|2,3")))


@pytest.mark.slow
def test_a_ring_moves_too(jobs: Jobs) -> None:
    jobs.check("cnn", schedule=CHANGES, overrides={"reduction": "ring"})


@pytest.mark.slow
@pytest.mark.parametrize("step", range(1, 9))
def test_every_border_will_do(jobs: Jobs, step: int) -> None:
    """Also the ones between epochs, and the last one."""
    jobs.check("cnn", "--evaluate", schedule=((step, 3),))


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("--workers", 2), ("--workers", 2, "--persistent"), ("--own-epochs",)])
def test_data_workers_and_own_epochs_move(jobs: Jobs, arguments: tuple[object, ...]) -> None:
    jobs.check("augmented", *arguments, "--epochs", 3, schedule=((2, 4), (4, 1), (7, 2)))


@pytest.mark.slow
def test_sums_of_the_epoch_are_there_for_a_worker_that_joins(jobs: Jobs) -> None:
    ran = jobs.check("cnn", "--evaluate", "--evaluate-every", 3, "--epochs", 3, schedule=((2, 1), (5, 4), (9, 2)))
    assert "(12, 43)" in ran.recorder.text["stdout"]


@pytest.mark.slow
def test_a_change_after_the_script_s_end_never_comes(jobs: Jobs) -> None:
    ran = jobs.check("cnn", schedule=((2, 3), (100, 4)))
    assert ran.placements == ["0,1|2,3", "0,1|2|3"]
