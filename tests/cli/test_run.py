"""``easyscale run``: what it prints where, its exit codes, and how it ends when it is interrupted or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cli.conftest import Called
from launch.harness import leftovers, write_script

CallScript = Callable[..., Called]


def test_output_goes_to_stdout_and_one_line_of_ours_to_stderr(call_script: CallScript, tmp_path: Path) -> None:
    called = call_script("print('hello')\nimport sys; print('oops', file=sys.stderr)", "run", "--workers", 2, ...)
    assert (called.exit_code, called.out) == (0, "hello\n")
    lines = called.err.splitlines()
    assert lines[0] == "oops"
    assert lines[1].startswith("finished: the script opened no session, 2 workers, runs/train-2")
    assert len(lines) == 2


def test_quiet_says_nothing_of_its_own(call_script: CallScript) -> None:
    called = call_script("print('hello')", "run", "--quiet", "--name", "mine", ...)
    assert (called.exit_code, called.out, called.err) == (0, "hello\n", "")
    assert Path("runs/mine/result.json").exists()


def test_json_leaves_stdout_to_the_result(call_script: CallScript) -> None:
    called = call_script("print('hello')", "run", "--json", "--quiet", "--name", "mine", "--placement", "1|0", ...)
    assert called.err == "hello\n"
    assert json.loads(called.out) == json.loads(Path("runs/mine/result.json").read_text())


def test_arguments_after_the_script_are_the_scripts(call_script: CallScript) -> None:
    called = call_script("import sys; print(sys.argv[1:])", "run", "--quiet", ..., "--ests", "-x", "--", "--help")
    assert called.out == "['--ests', '-x', '--', '--help']\n"


def test_what_the_user_gave_reaches_the_session(call_script: CallScript) -> None:
    source = """
        from easyscale.train import runtime
        context = runtime.current()
        print(context.placement, context.num_workers, context.is_num_ests_explicit, dict(context.overrides))
        """
    given = call_script(source, "run", "--quiet", "--ests", 3, "--workers", 2, "--seed", 5, "--reduction", "ring", ...)
    assert given.out == "0,1|2 2 True {'seed': 5, 'reduction': 'ring', 'threads': 1}\n"
    silent = call_script(source, "run", "--quiet", ...)
    assert silent.out == "None 1 False {'threads': 1}\n"


def test_an_error_is_shown_once_with_its_place(call_script: CallScript) -> None:
    source = """
        from tiny import steps
        def body(step, rank):
            raise ValueError("no more")
        steps(1, body)
        """
    called = call_script(source, "run", "--placement", "0,1|2,3", "--name", "mine", ...)
    assert called.exit_code == 1
    assert called.err.count("Traceback") == called.err.count("ValueError: no more") == 1
    last = called.err.splitlines()[-1]
    assert last.startswith("easyscale: error in EST ")
    assert ", global step 0; log: runs/mine/logs/rank-" in last
    result = json.loads(Path("runs/mine/result.json").read_text())
    assert (result["state"], result["error"]) == ("failed", "ValueError: no more")


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``easyscale run`` in a process group of its own, as a terminal does, and waits until it prints."""
    started: list[subprocess.Popen[str]] = []
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def launch_it(source: str, *arguments: str) -> subprocess.Popen[str]:
        script = write_script(tmp_path, source)
        process = subprocess.Popen(
            [sys.executable, "-m", "easyscale", "run", *arguments, str(script)],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()
        return process

    yield launch_it
    for process in started:
        with process:
            process.kill()
    deadline = time.monotonic() + 10
    while leftovers(tmp_path) and time.monotonic() < deadline:
        psutil.wait_procs(leftovers(tmp_path), timeout=0.2)
    assert not leftovers(tmp_path)
    assert not [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")]  # torch's cache


BUSY = """
    import signal
    from torch.utils.data import DataLoader
    batches = iter(DataLoader(range(1000), num_workers=2))
    next(batches)
    try:
        print("ready", flush=True)
        while True:
            signal.pause()
    finally:
        print("cleaned up")
    """


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_cleanly(launch: Callable[..., subprocess.Popen[str]], number: int) -> None:
    process = launch(BUSY, "--workers", "2", "--name", "mine")
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=20)
    name = signal.Signals(number).name
    assert (process.returncode, out) == (128 + number, "cleaned up\n")
    assert err == f"easyscale: stopped by {name} after 0 global steps\n"


@pytest.mark.slow
def test_ctrl_c_while_torch_is_being_imported_is_a_clean_stop_too(tmp_path: Path) -> None:
    script = write_script(tmp_path, "print('never')")
    command = [sys.executable, "-m", "easyscale", "run", str(script)]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        launcher = psutil.Process(process.pid)
        while len(launcher.children()) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "easyscale: stopped by SIGINT after 0 global steps\n")
    assert not leftovers(tmp_path)


@pytest.mark.slow
def test_killing_the_launcher_leaves_no_process(launch: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = launch(BUSY, "--workers", "2")
    assert len(leftovers(tmp_path)) >= 1 + 2 + 4
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_reader_that_leaves_stops_the_run(launch: Callable[..., subprocess.Popen[str]]) -> None:
    process = launch("while True: print('ready', flush=True)")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=20) == 1
    assert process.stderr is not None
    assert (
        process.stderr.read() == "easyscale: the script's output cannot be written (Broken pipe): the run was stopped\n"
    )
