"""What a running job answers: how it stands, a change, or one sentence why not; and then nothing has changed."""

from __future__ import annotations

from typing import Any

import pytest

from easyscale.core.errors import EasyScaleError
from easyscale.core.placement import Placement
from easyscale.launch.answers import answer
from easyscale.launch.elasticity import Elasticity
from easyscale.launch.master import Master


@pytest.fixture
def master() -> Master:
    master = Master(Placement.parse("0,1|2,3"), Elasticity(1, 3), "store")
    for worker in (0, 1):
        master.ready(worker, 1.0)
    return master


def test_how_it_stands(master: Master) -> None:
    told = {"placement": "0,1|2,3", "members": [0, 1], "generation": 0, "failures": 0, "wanted": None}
    assert answer({"ask": "status"}, master, knows_ests=True) == told
    assert answer({"ask": "status"}, master, knows_ests=False) == {**told, "placement": None}
    assert answer({"ask": "scale", "workers": 3}, master, knows_ests=True) == {"from": "0,1|2,3", "to": "0,1|2|3"}
    assert answer({"ask": "status"}, master, knows_ests=True) == {**told, "wanted": "0,1|2|3"}


def test_a_placement_may_be_asked_for(master: Master) -> None:
    assert answer({"ask": "scale", "placement": "3|2,1,0"}, master, knows_ests=True)["to"] == "3|2,1,0"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"ask": "tea"}, "'tea' is nothing that this version can be asked for"),
        ({"ask": "scale", "workers": 0}, "both must be 1 or more"),
        ({"ask": "scale", "workers": 4}, "ask for 1 to 3"),
        ({"ask": "scale", "workers": "3"}, "'3' is no number of workers"),
        ({"ask": "scale", "workers": True}, "'True' is no number of workers"),
        ({"ask": "scale", "workers": 2.0}, "'2.0' is no number of workers"),
        ({"ask": "scale", "workers": [1] * 9999}, "is no number of workers"),
        ({"ask": "scale", "workers": None}, "'None' is no number of workers"),
        ({"ask": "scale", "placement": "0|1"}, "holds 2 ESTs but the job has 4"),
        ({"ask": "scale", "placement": "0|0|1|2"}, "repeated: 0"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said(master: Master, request_: dict[str, Any], words: str) -> None:
    with pytest.raises(EasyScaleError, match=words):
        answer(request_, master, knows_ests=True)
    assert master.actions() == []
    assert master.wanted == master.placement


@pytest.mark.parametrize("request_", [{}, {"ask": "scale"}, {"ask": "scale", "placement": 5}], ids=str)
def test_what_is_no_request_raises_what_the_socket_answers_for(master: Master, request_: dict[str, Any]) -> None:
    with pytest.raises((KeyError, AttributeError)):
        answer(request_, master, knows_ests=True)
    assert master.actions() == []


def test_before_the_script_has_said_how_many_ests_there_are(master: Master) -> None:
    with pytest.raises(EasyScaleError, match="the script has not said yet how many ESTs it has"):
        answer({"ask": "scale", "workers": 1}, master, knows_ests=False)
    assert master.wanted == master.placement
