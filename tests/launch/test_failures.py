"""Whatever ends a worker ends the run: with the first cause named, and with no process left."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from easyscale.core.events import EndEvent, FailureEvent
from launch.harness import Ran, Recorder

Run = Callable[..., Ran]


def test_a_killed_worker_is_named_with_its_ranks_step_and_log(run_script: Run) -> None:
    ran = run_script(
        """
        import os, signal, time
        from tiny import steps, context
        def body(step, rank):
            if (step, rank) == (2, 2):
                time.sleep(0.5)  # reports of short steps travel together
                os.kill(os.getpid(), signal.SIGKILL)
        steps(3, body)
        if context.worker_rank == 0:
            signal.pause()
        """,
        placement="0,1|2,3",
    )
    assert (ran.result.exit_code, ran.result.state) == (1, "failed")
    error = ran.result.error
    assert error is not None
    assert error.startswith(
        "worker 1 (virtual ranks 2, 3) was ended by SIGKILL, the last global step that all workers had reported is 1 "
    )
    assert error.endswith(f"log: {ran.result.folder.worker_log(1)}")
    assert [type(event) for event in ran.events()[-2:]] == [FailureEvent, EndEvent]
    assert ran.result.global_steps == 2


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV, before all workers had reported a global step"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "was ended by SIGTERM, before any global step"),
        ("os._exit(0)", "ended with exit code 0 without a word"),
        ("os._exit(7)", "ended with exit code 7 without a word"),
    ],
)
def test_a_worker_that_ends_without_a_word_fails_the_run(run_script: Run, statement: str, words: str) -> None:
    ran = run_script(f"import os, signal\nprint('tail', end='', flush=True)\n{statement}")
    assert ran.result.exit_code in (1, 143)
    assert words in str(ran.result.error)
    assert ran.out == "tail"


def test_a_crash_leaves_the_python_stack_in_the_log(run_script: Run) -> None:
    ran = run_script("import os, signal\ndef culprit():\n    os.kill(os.getpid(), signal.SIGSEGV)\nculprit()")
    assert "in culprit" in ran.log("worker-0.log")


def test_a_lost_peer_never_hides_the_first_cause(run_script: Run) -> None:
    ran = run_script(
        """
        import torch, torch.distributed as dist
        from tiny import context
        dist.init_process_group(
            "gloo", store=dist.FileStore(context.store_path, 3), rank=context.worker_rank, world_size=3
        )
        dist.all_reduce(torch.ones(1))
        if context.worker_rank == 1:
            dist.destroy_process_group()
            import time; time.sleep(0.3)  # the others fail first
            raise ValueError("the cause")
        dist.all_reduce(torch.ones(1))
        """,
        placement="0|1|2",
    )
    assert ran.result.error == "ValueError: the cause"


def test_a_worker_that_leaves_early_is_reported_by_those_that_miss_it(run_script: Run) -> None:
    ran = run_script(
        """
        import torch, torch.distributed as dist
        from tiny import context
        dist.init_process_group(
            "gloo", store=dist.FileStore(context.store_path, 2), rank=context.worker_rank, world_size=2
        )
        dist.all_reduce(torch.ones(1))
        if context.worker_rank == 0:
            dist.all_reduce(torch.ones(1))
        """,
        placement="0|1",
    )
    assert ran.result.exit_code == 1
    assert "Connection closed by peer" in str(ran.result.error)
    assert "worker 1 had already ended the script" in str(ran.result.failure and ran.result.failure.where)


def test_users_clean_up_runs_when_another_worker_fails(run_script: Run) -> None:
    ran = run_script(
        """
        import os, signal, time
        from tiny import context
        if context.worker_rank == 1:
            while not os.path.exists("ready"):
                time.sleep(0.01)
            raise ValueError
        try:
            open("ready", "w").close()
            signal.pause()
        finally:
            print("cleaned up")
        """,
        placement="0|1",
    )
    assert ran.out == "cleaned up\n"
    assert ran.result.error == "ValueError"


def test_a_worker_that_refuses_to_end_is_killed_with_all_it_started(
    run_script: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("easyscale.launch.verdict.GRACE_S", 0.2)
    ran = run_script(
        """
        import os, signal, subprocess, sys, time
        from torch.utils.data import DataLoader
        from tiny import context
        if context.worker_rank == 1:
            while not os.path.exists("ready"):
                time.sleep(0.01)
            raise ValueError
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        batches = iter(DataLoader(range(1000), num_workers=2))
        next(batches)
        subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        open("ready", "w").close()
        while True:
            signal.pause()
        """,
        placement="0|1",
    )
    assert ran.result.error == "ValueError"


def test_ctrl_c_stops_a_run_with_data_workers(run_script: Run) -> None:
    recorder = Recorder()
    recorder.on_output = lambda text: os.kill(os.getpid(), signal.SIGINT)
    ran = run_script(
        """
        from torch.utils.data import DataLoader
        import signal
        batches = iter(DataLoader(range(1000), num_workers=2))
        next(batches)
        print("ready", flush=True)
        signal.pause()
        """,
        recorder=recorder,
    )
    assert (ran.result.state, ran.result.exit_code, ran.result.error) == ("stopped", 130, "stopped by SIGINT")


def test_a_second_ctrl_c_kills_at_once(run_script: Run) -> None:
    recorder = Recorder()

    def interrupt(text: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    recorder.on_output = interrupt
    ran = run_script(
        """
        import signal
        try:
            print("ready", flush=True)
            signal.pause()
        finally:
            print("cleaning up", flush=True)
            signal.pause()
        """,
        recorder=recorder,
    )
    assert (ran.result.state, ran.result.exit_code) == ("stopped", 130)
    assert ran.result.seconds < 3
    assert "killing" in recorder.notices[0]


def test_a_closed_console_stops_the_run(run_script: Run) -> None:
    recorder = Recorder()

    def closed(text: str) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    recorder.on_output = closed
    ran = run_script("import signal\nprint('hello', flush=True)\nsignal.pause()", recorder=recorder)
    assert (ran.result.state, ran.result.exit_code) == ("failed", 1)


def test_garbage_from_a_worker_fails_the_run(run_script: Run) -> None:
    ran = run_script(
        """
        import gc, signal
        from multiprocessing.connection import Connection
        next(thing for thing in gc.get_objects() if isinstance(thing, Connection)).send_bytes(b"garbage")
        signal.pause()
        """
    )
    assert "not a message: b'garbage'" in str(ran.result.error)
    assert ran.result.exit_code == 1


def test_a_worker_that_dies_before_the_script_says_so(run_script: Run, tmp_path: Path) -> None:
    ran = run_script("import os; os._exit(1)")
    assert "without a word" in str(ran.result.error)
