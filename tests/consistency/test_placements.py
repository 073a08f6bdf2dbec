"""The promise: after every global step all tensors are equal in every bit, whatever the placement and the form."""

from __future__ import annotations

from typing import Any

import pytest

from consistency.compare import assert_same_run, assert_same_steps, first_difference
from consistency.conftest import Jobs
from consistency.fleet import MemberError
from easyscale.core.placement import Placement

UNEVEN = ["0|1,2", "0,1,2|3", "0|1,2,3", "0,1,2,3|4", "0|1|2,3,4", "0,1,2,3,4|5|6,7"]
SHUFFLED = [
    "1,0",
    "2|0,1",
    "3,0|2|1",
    "2|0,3,1",
    "3,2,1,0",
    "0,2|1,3",
    "4,1|0,2,3",
    "7,0,3|1,6|2,5,4",
    "0,2,4,6|1,3,5,7",
]

BOTH_FORMS = [
    "cnn",
    "cnn_drop_last",
    "cnn_in_order",
    "cnn_own_buffers",
    "augmented",
    "transformer",
    "patchy",
    "patchy_never_zeroed",
    "mixed_dtypes",
    "replacing",
    "scalars",
    "noise_in_body",
    "never_zeroed",
    "mixed_precision",
    "averaged_model",
    "two_models",
]
TWO_LOOP_ONLY = ["gan", "uneven_gan", "lazy", "two_losses", "accumulated", "weighted", "draws", "evaluated"]
FAST = ["cnn", "patchy", "gan"]


def even_placements(num_ests: int) -> list[str]:
    """One for each number of workers; as many workers as ESTs is what the others are compared with."""
    return [str(Placement.even(num_ests, workers)) for workers in range(1, max(2, num_ests))]


def others(num_ests: int) -> list[str]:
    return [text for text in UNEVEN + SHUFFLED if Placement.parse(text).num_ests == num_ests]


def assert_placements_agree(jobs: Jobs, placements: list[str], case: str, form: str, **job: Any) -> None:
    num_ests = Placement.parse(placements[0]).num_ests
    job["epochs"] = 1 if num_ests <= 3 else 2  # four steps or more
    expected = jobs.reference(num_ests, case, form, **job)
    for placement in placements:
        found = jobs.run(placement, case, form, **job)
        assert_same_run(found, expected, f"{case} ({form}) on {placement}")


@pytest.mark.parametrize("case", FAST)
@pytest.mark.parametrize("placement", ["0,1", "0,1,2,3", "0,1,2|3", "3,0|2|1"])
def test_a_few_placements_agree(jobs: Jobs, placement: str, case: str) -> None:
    assert_placements_agree(jobs, [placement], case, "two_loop")


@pytest.mark.parametrize("case", ["cnn", "patchy"])
def test_a_few_placements_agree_in_the_drop_in_form(jobs: Jobs, case: str) -> None:
    assert_placements_agree(jobs, ["0,1,2,3", "3,0|2|1"], case, "drop_in")


@pytest.mark.slow
@pytest.mark.parametrize("case", BOTH_FORMS + TWO_LOOP_ONLY)
@pytest.mark.parametrize("num_ests", [1, 2, 3, 4, 5, 8])
def test_placements_agree(jobs: Jobs, num_ests: int, case: str) -> None:
    assert_placements_agree(jobs, even_placements(num_ests) + others(num_ests), case, "two_loop")


@pytest.mark.slow
@pytest.mark.parametrize("case", BOTH_FORMS)
@pytest.mark.parametrize("num_ests", [1, 2, 3, 4, 5, 8])
def test_placements_agree_in_the_drop_in_form(jobs: Jobs, num_ests: int, case: str) -> None:
    assert_placements_agree(jobs, even_placements(num_ests) + others(num_ests), case, "drop_in")


@pytest.mark.slow
@pytest.mark.parametrize("case", ["cnn_channels_last", "patchy_zeros", "patchy_late", "idle", "few_samples"])
@pytest.mark.parametrize("form", ["two_loop", "drop_in"])
def test_some_placements_agree(jobs: Jobs, form: str, case: str) -> None:
    for placements in (["0,1,2"], ["0,1,2,3,4", "4,1|0,2,3"]):
        assert_placements_agree(jobs, placements, case, form)


CARRIED = {"rng": "ddp", "reduction": "ring"}


@pytest.mark.slow
@pytest.mark.parametrize("case", ["cnn", "patchy", "cnn_own_buffers", "mixed_dtypes"])
@pytest.mark.parametrize("form", ["two_loop", "drop_in"])
def test_placements_agree_with_carried_streams_and_a_ring(jobs: Jobs, form: str, case: str) -> None:
    for num_ests in (2, 3, 5):
        placements = even_placements(num_ests) + others(num_ests)
        assert_placements_agree(jobs, placements, case, form, overrides=CARRIED)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["augmented", "augmented_by_workers", "weighted", "draws", "evaluated", "accumulated"])
def test_some_placements_agree_with_carried_streams_and_a_ring(jobs: Jobs, case: str) -> None:
    for placements in (["0,1,2"], ["0,1,2,3,4", "4,1|0,2,3"]):
        assert_placements_agree(jobs, placements, case, "two_loop", overrides=CARRIED)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["cnn", "transformer", "gan"])
def test_a_run_repeats(jobs: Jobs, case: str) -> None:
    assert_placements_agree(jobs, ["0|1|2|3"], case, "two_loop")


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["0,1,2", "0|1,2"])
def test_data_workers_draw_the_same_numbers(jobs: Jobs, placement: str) -> None:
    assert_placements_agree(jobs, [placement], "augmented_by_workers", "two_loop")


def test_number_of_data_workers_does_not_show(jobs: Jobs) -> None:
    found = jobs.run("0|1", "augmented_by_workers", epochs=1)
    assert_same_run(found, jobs.reference(2, "augmented", epochs=1), "two data workers instead of none")


@pytest.mark.parametrize("case", ["cnn", pytest.param("transformer", marks=pytest.mark.slow)])
def test_bucket_size_does_not_show_in_a_tree(jobs: Jobs, case: str) -> None:
    found = jobs.run("0,1|2", case, epochs=1, bucket_cap_mb=0.001)
    assert_same_run(found, jobs.reference(3, case, epochs=1), f"{case} with many buckets")


@pytest.mark.slow
@pytest.mark.parametrize("case", BOTH_FORMS)
@pytest.mark.parametrize("num_ests", [1, 2, 4])
def test_both_forms_mean_the_same(jobs: Jobs, num_ests: int, case: str) -> None:
    epochs = 1 if num_ests <= 3 else 2
    two_loop = jobs.reference(num_ests, case, "two_loop", epochs=epochs)
    drop_in = jobs.reference(num_ests, case, "drop_in", epochs=epochs)
    assert_same_run(drop_in, two_loop, f"{case}: drop-in form and two-loop form")


def test_ests_draw_different_numbers(jobs: Jobs) -> None:
    for logged in jobs.reference(3, "draws", epochs=1)["scalars"]:
        for name in ("torch", "numpy", "python"):
            assert len({values[name] for values in logged.values()}) == 3


def test_a_gan_is_refused_in_the_drop_in_form(jobs: Jobs) -> None:
    for placement in ("0,1", "0|1"):
        with pytest.raises(MemberError, match=r"session\.steps\(loader\)") as refusal:
            jobs.run(placement, "gan", "drop_in")
        assert refusal.value.kind in ("UsageError", "RefusedError")


def test_training_changes_parameters_and_state_in_every_step(jobs: Jobs) -> None:
    steps = jobs.reference(2, "cnn")["steps"]
    assert len(steps) >= 10
    for before, after in zip(steps, steps[1:], strict=False):
        still = [name for name in after if before[name] == after[name] and ".group." not in name]
        assert not still, f"the test would see nothing: {still} did not change"


def test_the_comparison_sees_other_numbers(jobs: Jobs) -> None:
    two, three = jobs.reference(2, "cnn")["steps"], jobs.reference(3, "cnn")["steps"]
    assert "step 0" in (first_difference(three, two) or "")
    with pytest.raises(AssertionError, match="11 steps instead of 12"):
        assert_same_steps([{"a": "1"}] * 11, [{"a": "1"}] * 12, "shorter")
    other_seed = jobs.run("0|1", "cnn", overrides={"seed": 12})["steps"]
    assert "step 0" in (first_difference(other_seed, two) or "")
