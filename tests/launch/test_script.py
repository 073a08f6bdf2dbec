"""A script under the launcher is the script that ``python`` runs, and its ends are the ends that a user knows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.harness import Ran

Run = Callable[..., Ran]

SELF_PORTRAIT = """
    import multiprocessing, os, pickle, sys
    class Thing: pass
    print(__name__, __file__, sys.argv, sys.path[0], os.getcwd())
    print(__spec__, sys.modules["__main__"].__dict__ is globals())
    print(multiprocessing.get_start_method(), multiprocessing.current_process().name)
    print(type(pickle.loads(pickle.dumps(Thing()))) is Thing)
    print("annotations" in globals(), sys.stdout.isatty(), sys.stdout.encoding)
"""


def test_a_script_finds_itself_as_under_python(run_script: Run, tmp_path: Path) -> None:
    ran = run_script(SELF_PORTRAIT, args=("--lr", "-1", "--", "x"))
    assert ran.result.exit_code == 0
    command = [sys.executable, str(tmp_path / "train.py"), "--lr", "-1", "--", "x"]
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.out == plain.stdout


def test_text_arrives_unchanged(run_script: Run) -> None:
    ran = run_script(
        r"""
        import sys
        print("no newline", end="")
        sys.stdout.write("a\r\n\tcaf\u00e9 \U0001f600\n")
        sys.stdout.buffer.write(b"\xff\x00 raw\n")
        print("to stderr", file=sys.stderr)
        print("tail", end="")
        """
    )
    assert ran.out == "no newlinea\r\n\tcaf\u00e9 \U0001f600\n\udcff\0 raw\ntail"
    assert ran.err == "to stderr\n"


def test_megabytes_arrive_whole_from_both_workers(run_script: Run) -> None:
    ran = run_script("print('x' * 3_000_000 + 'y'); print('z' * 100, flush=True)", placement="0|1")
    assert ran.out == "x" * 3_000_000 + "y\n" + "z" * 100 + "\n"
    assert ran.log("worker-1.log") == ran.out


def test_only_what_one_process_would_print_is_shown_and_all_is_in_the_logs(run_script: Run) -> None:
    ran = run_script(
        """
        import os, sys
        from tiny import steps, context
        print("begin", context.worker_rank)
        print("warning", context.worker_rank, file=sys.stderr)
        steps(2, lambda step, rank: print("step", step, "EST", rank))
        os.write(1, b"from C\\n")
        print("end")
        """,
        placement="1|0,2",
    )
    assert ran.out == "begin 1\nstep 0 EST 0\nstep 1 EST 0\nend\n"
    assert ran.err == "warning 1\n"
    assert ran.log("rank-2.log") == "step 0 EST 2\nstep 1 EST 2\n"
    assert ran.log("rank-0.log") == "step 0 EST 0\nstep 1 EST 0\n"
    assert ran.log("worker-0.log") == "begin 0\nwarning 0\nfrom C\nend\n"


def test_data_workers_print_into_the_log(run_script: Run) -> None:
    ran = run_script(
        """
        from torch.utils.data import DataLoader
        class Loud(list):
            def __getitem__(self, index):
                print("item", index, flush=True)
                return index
        print("sum ", end="")
        print(sum(int(x) for x in DataLoader(Loud(range(4)), num_workers=2)))
        """
    )
    assert ran.out == "sum 6\n"
    assert sorted(ran.log("worker-0.log").split()) == ["0", "1", "2", "3", "6", *["item"] * 4, "sum"]


def test_exit_handlers_run(run_script: Run) -> None:
    ran = run_script("import atexit; atexit.register(print, 'goodbye'); print('hello')")
    assert ran.out == "hello\ngoodbye\n"


@pytest.mark.parametrize(
    ("statement", "exit_code", "message"),
    [
        ("sys.exit()", 0, None),
        ("sys.exit(0)", 0, None),
        ("sys.exit(3)", 3, "the script ended with exit code 3"),
        ("sys.exit('no data')", 1, "no data"),
    ],
)
def test_the_exit_code_is_the_scripts(run_script: Run, statement: str, exit_code: int, message: str) -> None:
    ran = run_script(f"import sys; {statement}")
    assert (ran.result.exit_code, ran.result.error) == (exit_code, message)


def test_an_error_shows_the_users_frames_alone_and_names_est_and_step(run_script: Run, tmp_path: Path) -> None:
    ran = run_script(
        """
        import os, sys
        from tiny import steps
        os.chdir("/")
        sys.stdout.close()
        def body(step, rank):
            if (step, rank) == (1, 3):
                raise ValueError("no more")
        steps(3, body)
        """,
        placement="0,1|2,3",
    )
    cause = ran.result.failure
    assert cause is not None
    assert (ran.result.exit_code, ran.result.state) == (1, "failed")
    lines = cause.details.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{tmp_path}/train.py", line 9, in <module>'
    assert lines[-1] == "ValueError: no more"
    assert cause.where.startswith("error in EST 3 (worker 1), global step 1; log: ")
    assert cause.where.endswith("logs/rank-3.log")
    assert "ValueError: no more" in ran.log("rank-3.log")


@pytest.mark.parametrize(
    ("source", "last_line"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = (", "SyntaxError: '(' was never closed"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        (
            "import sys; sys.setrecursionlimit(90)\ndef f(): f()\nf()",
            "RecursionError: maximum recursion depth exceeded",
        ),
    ],
)
def test_a_broken_script_fails_once_on_two_workers(run_script: Run, source: str, last_line: str) -> None:
    ran = run_script(source, placement="0|1")
    cause = ran.result.failure
    assert cause is not None
    assert cause.details.rstrip().endswith(last_line)
    assert "easyscale" not in cause.details
    assert cause.where.startswith(("error in worker 0; log", "error in worker 1; log"))


def test_what_is_refused_is_one_sentence_and_exit_code_2(run_script: Run) -> None:
    ran = run_script("from easyscale.core.errors import RefusedError\nraise RefusedError('SyncBatchNorm: no')", "0|1")
    cause = ran.result.failure
    assert cause is not None
    assert (ran.result.exit_code, cause.message, cause.details, cause.where) == (2, "SyncBatchNorm: no", "", "")


def test_wrong_use_is_refused_before_the_first_step_and_shows_its_line_later(run_script: Run) -> None:
    source = """
        from easyscale.core.errors import UsageError
        from tiny import steps
        steps({steps})
        raise UsageError("not so")
        """
    early = run_script(source.format(steps=0)).result
    late = run_script(source.format(steps=2)).result
    assert (early.exit_code, early.error) == (2, "not so")
    assert (late.exit_code, late.error) == (1, "not so")
    assert late.failure is not None
    assert late.failure.details.splitlines()[1].strip() == 'raise UsageError("not so")'
