"""``verify --rescale --kill --stop``: what is asked for happens in a real run, or nothing is said to be proved."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from cli.conftest import Called
from easyscale.cli import disturbance
from easyscale.cli.disturbance import Disturbance
from easyscale.core.errors import RefusedError
from easyscale.core.placement import Placement

pytestmark = pytest.mark.draws_random_numbers  # rich numbers its styles with them, in this process only

TRAINING = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    import easyscale

    session = easyscale.session(seed=3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
    data = TensorDataset(torch.randn(36, 5), torch.randn(36, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(data, batch_size=2, shuffle=True)
    model, optimizer, loader = session.prepare(model, optimizer, loader)
    for step in session.steps(loader):
        for x, y in step:
            torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    """

CHANGED_BY_JOINERS = """
    import torch
    import easyscale
    from easyscale.train import runtime

    session = easyscale.session(seed=3)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = session.prepare(model, optimizer)
    is_new = runtime.current().worker_rank > 1
    for step in session.steps(6):
        for _ in step:
            model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if is_new and step.global_step == 3:
            with torch.no_grad():
                next(model.parameters()).add_(0.5)
    """


def asked(**options: str) -> tuple[Disturbance, ...]:
    return disturbance.parse(options.get("rescale"), options.get("kill"), options.get("stop"))


def test_what_is_asked_for_is_put_in_order() -> None:
    found = asked(rescale="3:4,7:2", kill="7,12", stop="7")
    assert list(map(str, found)) == ["--rescale 3:4", "--rescale 7:2", "--kill 7", "--stop 7", "--kill 12"]
    assert asked() == ()


def test_virtual_rank_0_s_worker_is_hit_first_and_the_last_one_s_next() -> None:
    rules = disturbance.elasticity(asked(rescale="3:4", kill="2,7", stop="4"), Placement.parse("0,1|2,3"), 1.5)
    assert [(fault.action, fault.step, fault.virtual_rank) for fault in rules.faults] == [
        ("kill", 2, 0),
        ("stop", 4, 3),
        ("kill", 7, 0),
    ]
    assert (rules.min_workers, rules.max_workers, rules.hang_timeout_s) == (2, 4, 1.5)
    # before global steps 4 and 7 the job waits until there are as many workers as planned
    assert [(step, str(placement)) for step, placement in rules.schedule] == [
        (3, "0|1|2|3"),
        (4, "0|1|2|3"),
        (7, "0|1|2|3"),
    ]


def test_the_elastic_run_begins_where_a_worker_can_be_lost() -> None:
    placements = [Placement.parse(text) for text in ("0,1,2", "0,2|1", "0|1|2")]
    assert str(disturbance.start_among(placements)) == "0,2|1"
    assert str(disturbance.start_among(placements[:1])) == "0,1,2"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"kill": "3"},
            "the job has 1 worker in global step 3 (it starts on placement 0,1,2,3)",
        ),
        ({"rescale": "2:3,4:1", "stop": "4"}, "the job has 1 worker in global step 4 (--rescale 4:1)"),
        ({"rescale": "2:2", "kill": "2", "stop": "2"}, "the job has 2 workers in global step 2"),
    ],
)
def test_a_loss_of_all_workers_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(RefusedError) as refused:
        disturbance.elasticity(asked(**options), Placement.parse("0,1,2,3"), 1.0)
    assert words in str(refused.value)


@pytest.mark.slow
def test_all_that_is_asked_for_happens_and_is_told(call_script: Callable[..., Called]) -> None:
    events = ("--rescale", "1:3,3:2", "--kill", "1,2", "--stop", "3", "--hang-timeout", 1.5)
    called = call_script(TRAINING, "verify", "--ests", 3, "--workers", "1,2", *events, "--json", ...)
    assert (called.exit_code, called.err) == (0, "")
    found = json.loads(called.out)
    assert (found["equal"], found["proved"]) == (True, True)
    run = found["runs"][-1]
    told = [(one["event"], one["global_step"], one["happened"], one["placement"]) for one in run["events"]]
    assert told == [
        ("rescale", 1, True, "0|1|2"),
        ("kill", 1, True, "0,1|2"),
        ("kill", 2, True, "0,1|2"),
        ("rescale", 3, True, "0,1|2"),
        ("stop", 3, True, "0,1,2"),
    ]
    assert all(one["pause_s"] > 0 for one in run["events"])
    stop = run["events"][-1]
    assert stop["step_s"] > 1.0 > stop["pause_s"]  # the step waited for the hang timeout


@pytest.mark.slow
def test_what_the_script_never_reached_is_not_proved(call_script: Callable[..., Called]) -> None:
    called = call_script(TRAINING, "verify", "--ests", 3, "--workers", "2", "--kill", "1,40", "--rescale", "50:3", ...)
    assert called.exit_code == 1
    assert "not proved: every digest is the same, but --kill 40, --rescale 50:3 did not happen" in called.out
    assert "the script ends after 6 global steps, from 0 to 5" in called.out
    assert "did not happen" in called.out.split("kill (SIGKILL)")[2].splitlines()[0]


@pytest.mark.slow
def test_a_difference_that_only_a_joiner_makes_is_found(call_script: Callable[..., Called]) -> None:
    called = call_script(
        CHANGED_BY_JOINERS, "verify", "--ests", 2, "--workers", "2", "--kill", "2", "--rescale", "3:2", ...
    )
    assert called.exit_code == 1
    assert "workers 1 and 2 hold different tensors" in called.err
    assert called.err.endswith("easyscale: nothing was proved, the run on elastic, from 0|1 failed\n")
