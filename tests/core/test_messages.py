"""Messages between launcher and worker: what is sent is read, what is not a message is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.core.digest import combine
from easyscale.core.errors import EasyScaleError
from easyscale.core.job import Fault, ScriptSpec, WatchSpec
from easyscale.core.messages import (
    Alive,
    Failed,
    Finished,
    Formed,
    Hello,
    Leaving,
    Left,
    Logged,
    Lost,
    Message,
    Moved,
    Opened,
    Output,
    Ready,
    StepReport,
    WorkerConfig,
    decode,
    encode,
)
from easyscale.core.orders import Form, Go, Order, Stop

MESSAGES = [
    Hello(1, 77),
    Opened(0, 4),
    StepReport(0, 3, 1, None, 0.25, {"2": {"loss": float("inf")}}, "ab", {"weight": "cd"}),
    Output(1, None, "stderr", "caf\u00e9 \udcff\n"),
    Failed(0, "error", "ValueError: no", "Traceback", 3, 17, 1, True),
    Finished(2, 10, 4, "ab", 1024),
    Alive(1),
    Logged(1, 3, {"2": {"loss": 0.5}}),
    Ready(4),
    Formed(1, 2, 10, {"border": 1.5}),
    Moved(1, 2, 0.25),
    Lost(1, 2, "a connection broke", True),
    Leaving(3),
    Left(3),
    Form(2, "0,1|2", [0, 4], [4], "store-2", True, 10, 1),
    Go(2),
    Stop(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_read_as_it_was_sent(message: Message | Order) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "frame", [b"", b"\xff\xfe", b"null", b"[1]", b"{}", b'{"v":1}', b'{"v":1,"type":"Hello"}', b'{"v":1,"type":[]}']
)
def test_what_is_no_message_is_refused(frame: bytes) -> None:
    with pytest.raises(EasyScaleError, match="not a message"):
        decode(frame)


@given(st.binary())
def test_garbage_is_never_anything_but_refused(frame: bytes) -> None:
    with pytest.raises(EasyScaleError):
        decode(frame)


def test_another_version_says_so() -> None:
    with pytest.raises(EasyScaleError, match="version 99"):
        decode(b'{"v":99,"type":"Hello","worker_rank":0,"pid":1}')


def test_a_worker_gets_the_configuration_that_was_made_for_it() -> None:
    config = WorkerConfig(
        1,
        2,
        "0|1",
        "store",
        ScriptSpec("t.py", ("--x", "1")),
        {"seed": 1},
        True,
        WatchSpec(True, True, 3),
        "l",
        "w",
        ["p"],
        is_joiner=True,
        stops=[3, 7],
        faults=[Fault("step.begin", "stop", 3, 1, 0, "f")],
        speeds=[[0, 0.4], [30, 0.1]],
    )
    assert WorkerConfig.from_json(config.to_json()) == config


def test_a_digest_depends_on_names_hashes_and_order() -> None:
    digests = {
        combine(tensors)
        for tensors in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, {"a": "2", "b": "1"}, {"a": "1"}, {})
    }
    assert len(digests) == 5
