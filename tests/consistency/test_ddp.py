"""Equality with an unmodified DistributedDataParallel program, tensor by tensor, after every step."""

from __future__ import annotations

from typing import Any

import pytest

from consistency.compare import assert_same_steps, first_difference
from consistency.conftest import Jobs, Oracle
from consistency.fleet import MemberError
from easyscale.core.placement import Placement

RING = {"rng": "ddp", "reduction": "ring"}
TREE = {"rng": "ddp", "reduction": "tree"}

RECIPES = [
    "cnn",
    "cnn_drop_last",
    "cnn_in_order",
    "cnn_own_buffers",
    "augmented",
    "transformer",
    "patchy",
    "patchy_never_zeroed",
    "mixed_dtypes",
    "few_samples",
    "scalars",
    "noise_in_body",
    "never_zeroed",
    "gan",
    "uneven_gan",
    "two_losses",
    "accumulated",
]
_EPOCHS_FOR_TEN_STEPS = {2: 2, 3: 2, 4: 2, 5: 3, 8: 6}
"""Of the smallest data set; the others are longer."""


ODD = {2: "1|0", 3: "2,0|1", 4: "3,0|2|1", 5: "4,1|0,2,3", 8: "7,0,3|1,6|2,5,4"}
"""For each number of ESTs a placement that is neither even nor in order."""


def placements(num_ests: int) -> list[str]:
    """On one worker, on two, on one for each EST, and in no order."""
    return [*sorted({str(Placement.even(num_ests, workers)) for workers in (1, 2, num_ests)}), ODD[num_ests]]


def one_and_odd(num_ests: int) -> list[str]:
    return [str(Placement.even(num_ests, 1)), ODD[num_ests]]


def assert_equals_ddp(
    jobs: Jobs, ddp: Oracle, num_ests: int, case: str, where: list[str], *, epochs: int = 2, **options: Any
) -> None:
    by_rank = ddp(num_ests, case, epochs=epochs, **options)
    for placement in where:
        run = jobs.run(placement, case, epochs=epochs, overrides=RING, **options)
        what = f"{case} with {options or 'no options'} on {placement} against DDP"
        assert_same_steps(run["steps"], by_rank[0]["steps"], what)
        for step, logged in enumerate(run["scalars"]):
            for rank, values in logged.items():
                assert values.get("loss", by_rank[rank]["losses"][step]) == by_rank[rank]["losses"][step], what


@pytest.mark.parametrize("case", ["cnn", "patchy"])
@pytest.mark.parametrize("num_ests", [2, 5])  # 3 are too few: up or down the ring, the first two commute
def test_equals_ddp_in_short(jobs: Jobs, ddp: Oracle, num_ests: int, case: str) -> None:
    assert_equals_ddp(jobs, ddp, num_ests, case, one_and_odd(num_ests))


@pytest.mark.slow
@pytest.mark.parametrize("case", RECIPES)
@pytest.mark.parametrize("num_ests", [2, 3, 4, 5, 8])
def test_equals_ddp(jobs: Jobs, ddp: Oracle, num_ests: int, case: str) -> None:
    epochs = _EPOCHS_FOR_TEN_STEPS[num_ests]
    assert_equals_ddp(jobs, ddp, num_ests, case, placements(num_ests), epochs=epochs)


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {"bucket_cap_mb": 0.0001},
    {"bucket_cap_mb": 0.001},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"static_graph": True, "bucket_cap_mb": 0.001},
    {"find_unused_parameters": True, "bucket_cap_mb": 0.001},
    {"broadcast_buffers": False, "bucket_cap_mb": 0.001},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("case", ["cnn", "transformer", "mixed_dtypes", "scalars"])
@pytest.mark.parametrize("num_ests", [3, 5])
def test_equals_ddp_with_its_options(
    jobs: Jobs, ddp: Oracle, num_ests: int, case: str, options: dict[str, Any]
) -> None:
    assert_equals_ddp(jobs, ddp, num_ests, case, one_and_odd(num_ests), **options)


@pytest.mark.slow
@pytest.mark.parametrize("cap", [0.0001, 0.001])
@pytest.mark.parametrize("num_ests", [3, 5])
def test_equals_ddp_with_unused_parameters_in_many_buckets(jobs: Jobs, ddp: Oracle, num_ests: int, cap: float) -> None:
    assert_equals_ddp(jobs, ddp, num_ests, "patchy", one_and_odd(num_ests), bucket_cap_mb=cap)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["cnn_channels_last", "cnn_generator", "patchy_zeros", "idle", "replacing"])
@pytest.mark.parametrize("num_ests", [2, 5])
def test_equals_ddp_in_special_cases(jobs: Jobs, ddp: Oracle, num_ests: int, case: str) -> None:
    assert_equals_ddp(jobs, ddp, num_ests, case, one_and_odd(num_ests))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["patchy_late", "idle"])
def test_equals_ddp_with_unused_parameters_said_before(jobs: Jobs, ddp: Oracle, case: str) -> None:
    assert_equals_ddp(jobs, ddp, 5, case, one_and_odd(5), find_unused_parameters=True)


@pytest.mark.slow
def test_equals_ddp_with_a_static_graph_that_leaves_parameters_out(jobs: Jobs, ddp: Oracle) -> None:
    assert_equals_ddp(jobs, ddp, 5, "idle", one_and_odd(5), static_graph=True, find_unused_parameters=False)


def test_unused_parameters_that_come_late_are_refused_in_a_ring(jobs: Jobs) -> None:
    for placement in ("0,1,2", "0|1,2"):
        with pytest.raises(MemberError, match="find_unused_parameters=True") as refusal:
            jobs.run(placement, "patchy_late", overrides=RING)
        assert refusal.value.kind == "RefusedError"


@pytest.mark.slow
@pytest.mark.parametrize("num_ests", [3, 5, 8])
def test_equals_ddp_with_a_bucket_above_4_mb(jobs: Jobs, ddp: Oracle, num_ests: int) -> None:
    assert_equals_ddp(jobs, ddp, num_ests, "wide", one_and_odd(num_ests))


@pytest.mark.slow
@pytest.mark.parametrize("num_ests", [2, 3])
def test_equals_ddp_with_persistent_data_workers(jobs: Jobs, ddp: Oracle, num_ests: int) -> None:
    assert_equals_ddp(jobs, ddp, num_ests, "augmented_by_persistent_workers", one_and_odd(num_ests))


@pytest.mark.slow
@pytest.mark.parametrize("num_ests", [2, 3])
def test_equals_ddp_with_data_workers(jobs: Jobs, ddp: Oracle, num_ests: int) -> None:
    assert_equals_ddp(jobs, ddp, num_ests, "augmented_by_workers", one_and_odd(num_ests))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["cnn", "transformer", "patchy", "mixed_dtypes", "augmented"])
@pytest.mark.parametrize("num_ests", [2, 3, 5])
def test_drop_in_form_equals_ddp(jobs: Jobs, ddp: Oracle, num_ests: int, case: str) -> None:
    expected = ddp(num_ests, case)[0]["steps"]
    for placement in one_and_odd(num_ests):
        found = jobs.run(placement, case, "drop_in", overrides=RING)["steps"]
        assert_same_steps(found, expected, f"{case} in the drop-in form on {placement} against DDP")


@pytest.mark.slow
@pytest.mark.parametrize("case", ["cnn", "transformer", "patchy", "mixed_dtypes", "gan", "never_zeroed", "two_losses"])
@pytest.mark.parametrize("num_ests", [2, 3, 4, 5, 8])
def test_tree_equals_ddp_with_a_hook_that_adds_in_tree_order(jobs: Jobs, ddp: Oracle, num_ests: int, case: str) -> None:
    expected = ddp(num_ests, case, hook="tree")[0]["steps"]
    for placement in one_and_odd(num_ests):
        found = jobs.run(placement, case, overrides=TREE)["steps"]
        assert_same_steps(found, expected, f"{case} in tree order on {placement} against DDP with a hook")


def test_tree_equals_ddp_with_a_hook_in_short(jobs: Jobs, ddp: Oracle) -> None:
    found = jobs.run("0,1|2", "cnn", overrides=TREE)["steps"]
    assert_same_steps(found, ddp(3, "cnn", hook="tree")[0]["steps"], "cnn in tree order")


def test_the_orders_differ(jobs: Jobs, ddp: Oracle) -> None:
    """Were all orders equal in bits here, the tests above would prove nothing."""
    assert first_difference(ddp(3, "cnn", hook="tree")[0]["steps"], ddp(3, "cnn")[0]["steps"])
    assert first_difference(ddp(3, "cnn", bucket_cap_mb=0.001)[0]["steps"], ddp(3, "cnn")[0]["steps"])


@pytest.mark.parametrize("num_ests", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_the_products_hook_gives_ddp_our_order(jobs: Jobs, ddp: Oracle, num_ests: int) -> None:
    job = {"size": num_ests, "store_path": jobs.fleet.store_path(), "program": "cnn", "epochs": 2}
    found = jobs.fleet.call("consistency.hooked:train", [{"rank": rank, **job} for rank in range(num_ests)])
    assert_same_steps(found[0]["steps"], ddp(num_ests, "cnn", hook="tree")[0]["steps"], "easyscale.tree_hook")
