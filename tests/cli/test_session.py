"""The launcher together with a real session: whose error it was, what a run ends with, who says how many ESTs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Called

CallScript = Callable[..., Called]

pytestmark = pytest.mark.draws_random_numbers  # rich numbers its styles with them, in this process only

TRAIN = """
    import torch, easyscale
    session = easyscale.session({session})
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = session.prepare(model, optimizer)
    for step in session.steps(4):
        for _ in step:
            loss = model(torch.ones(2)).sum()
            loss.backward()
            session.log(loss=loss)
            {inner}
        {outer}
        optimizer.step()
        optimizer.zero_grad()
    {after}
    """


def train(session: str = "", inner: str = "pass", outer: str = "pass", after: str = "pass") -> str:
    return TRAIN.format(session=session, inner=inner, outer=outer, after=after)


@pytest.mark.parametrize("after", ["pass", "session.close()"])
def test_a_run_ends_with_its_digest(call_script: CallScript, after: str) -> None:
    called = call_script(train(after=after), "run", "--ests", 4, "--workers", 2, "--name", "mine", ...)
    result = json.loads(Path("runs/mine/result.json").read_text())
    assert (result["state"], result["global_steps"], result["num_ests"]) == ("finished", 4, 4)
    assert result["placements"] == ["0,1|2,3"]
    assert all(sent > 0 for sent in result["bytes_sent"])
    line = f"finished: 4 global steps, 4 ESTs on 2 workers, digest {result['digest'][:12]}…, runs/mine\n"
    assert called.err == line


def test_the_script_says_how_many_ests_there_are_if_nobody_else_does(call_script: CallScript) -> None:
    called = call_script(train("num_ests=5"), "run", "--workers", 2, "--json", ...)
    result = json.loads(called.out)
    assert (result["num_ests"], result["placements"]) == (5, ["0,1,2|3,4"])
    assert json.loads(call_script(train("num_ests=5"), "run", "--ests", 3, "--json", ...).out)["num_ests"] == 3


@pytest.mark.parametrize(
    ("where", "place"),
    [
        ("inner", "error in EST 2 (worker 1), global step 1; log: runs/mine/logs/rank-2.log"),
        ("outer", "error in worker 1 (virtual ranks 2, 3), global step 1; log: runs/mine/logs/worker-1.log"),
    ],
)
def test_an_error_is_placed(call_script: CallScript, where: str, place: str) -> None:
    statement = "if session.global_step == 1 and session.virtual_rank == 2: raise ValueError('no more')"
    source = train(**{where: statement})
    called = call_script(source, "run", "--ests", 4, "--workers", 2, "--name", "mine", ...)
    assert called.exit_code == 1
    assert called.err.splitlines()[-2:] == ["ValueError: no more", f"easyscale: {place}"]


def test_a_step_left_half_way_fails_the_run(call_script: CallScript) -> None:
    called = call_script(train(inner="break").replace("optimizer.step()", "break"), "run", "--ests", 2, ...)
    assert called.exit_code == 2
    assert "was left in the turn of virtual rank 0" in called.err


def test_the_same_bits_under_every_placement_and_ddp(call_script: CallScript) -> None:
    called = call_script(train(), "verify", "--ests", 3, "--placement", "2,0|1", "--against", "ddp", ...)
    assert called.exit_code == 0, called.err
    assert "equal: 3 runs, 4 global steps" in called.out
