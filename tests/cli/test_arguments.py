"""Wrong arguments: one sentence, exit code 2, and nothing has been started or written. Help comes at once."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Call
from easyscale.core.placement import Placement

REFUSED = [
    (("run", "--ests", "2", "--workers", "3", "train.py"), "3 workers were asked for but the job has 2 ESTs"),
    (("run", "--ests", "0", "train.py"), "0 ESTs on 1 workers"),
    (("run", "--placement", "0,2|3", "train.py"), "missing: 1"),
    (("run", "--placement", "0,a", "train.py"), "write it as"),
    (("run", "--placement", "0,1|2", "--ests", "4", "train.py"), "holds 3 ESTs but --ests says 4"),
    (("run", "--placement", "0,1|2", "--workers", "3", "train.py"), "has 2 workers but --workers says 3"),
    (("run", "--workers", "4:1", "train.py"), "the smaller number first"),
    (("run", "--workers", "1:b", "train.py"), "nor a range"),
    (("run", "--rescale", "10", "train.py"), "write it as --rescale 10:4,20:1"),
    (("run", "--rescale", "4:2,4:1", "train.py"), "give rising global steps"),
    (("run", "--hang-timeout", "0", "train.py"), "more than 0 seconds"),
    (("run", "--device-kinds", "T4:2", "--workers", "3", "train.py"), "name one device for each"),
    (("run", "--device-kinds", "T4:0", "--workers", "1", "train.py"), "names no device"),
    (("run", "--emulate-speed", "T4=0.4", "train.py"), "name the kind in --device-kinds too"),
    (("run", "--device-kinds", "T4:1", "--emulate-speed", "T4=0", "train.py"), "give more than 0"),
    (("run", "--emulate-slowdown", "10:1", "train.py"), "write it as --emulate-slowdown 100:2=0.25"),
    (("run", "--emulate-slowdown", "10:1=2", "train.py"), "above 0 and up to 1"),
    (("run", "--plan", "auto", "--rescale", "10:4", "train.py"), "add --plan off"),
    (("run", "--plan", "off", "--capability", "T4=1", "train.py"), "leave one of them out"),
    (("run", "--plan", "auto", "--plan-gain", "0", "train.py"), "--plan-gain must be more than 0"),
    (("run", "--capability", "nowhere", "train.py"), "nowhere has no profile.json"),
    (("plan", "--capability", "T4=1"), "give --ests and --devices too"),
    (("run", "--resume", "train.py"), "--resume needs a folder: give --checkpoint-dir DIR too"),
    (("run", "--keep", "2", "train.py"), "--keep needs a folder"),
    (("run", "--checkpoint-dir", "c", "--checkpoint-every", "0", "train.py"), "must be 1 or more"),
    (("scale", "mine", "--workers", "2"), "there is no run named 'mine' in runs"),
    (("scale", "mine"), "give one of them"),
    (("run", "--workers", "two", "train.py"), "is not a number"),
    (("run", "nowhere.py"), "script nowhere.py does not exist"),
    (("run", "."), ". is a folder"),
    (("run",), "Missing argument 'SCRIPT'"),
    (("run", "--rng", "best", "train.py"), "'best' is not one of 'stepwise', 'ddp'"),
    (("run", "--determinism", "D1+D2", "train.py"), "not available"),
    (("run", "--threads", "0", "train.py"), "threads is 0"),
    (("run", "--seed", "-1", "train.py"), "seed is -1"),
    (("run", "--no-such-option", "train.py"), "No such option"),
    (("run", "--name", "a/b", "train.py"), "not the name of a folder"),
    (("run", "--run-dir", "train.py", "train.py"), "give another one with --run-dir"),
    (("walk",), "No such command 'walk'"),
    (("verify", "nowhere.py"), "does not exist"),
    (("verify", "--ests", "1", "train.py"), "is the only one"),
    (("verify", "--placement", "0|1", "--ests", "3", "train.py"), "holds 2 ESTs but --ests says 3"),
    (("verify", "--workers", "1,x", "train.py"), "is not a number"),
    (("verify", "--workers", "1,5", "train.py"), "5 workers were asked for but the job has 4 ESTs"),
    (("verify", "--against", "ddp", "--rng", "stepwise", "train.py"), "--against ddp needs --rng ddp"),
    (("verify", "--kill", "x", "train.py"), "write it as --kill 7,12"),
    (("verify", "--kill", "7,7", "train.py"), "give rising global steps from 0 on"),
    (("verify", "--stop", "-1", "train.py"), "give rising global steps from 0 on"),
    (("verify", "--rescale", "3", "train.py"), "write it as --rescale 10:4,20:1"),
    (("verify", "--rescale", "3:5", "train.py"), "5 workers were asked for but the job has 4 ESTs"),
    (("verify", "--stop", "3", "--hang-timeout", "0", "train.py"), "more than 0 seconds"),
    (("verify", "--workers", "1", "--kill", "3", "train.py"), "the job has 1 worker in global step 3"),
    (
        ("verify", "--rescale", "3:4,6:1", "--kill", "7", "train.py"),
        "in global step 7 (--rescale 6:1), and",
    ),
    (("verify", "--kill", "2", "--stop", "2", "train.py"), "--kill 2 and --stop 2 cannot be survived: the job has 2 w"),
    (("compare", "nowhere", "train.py"), "nowhere does not exist"),
    (("compare", "train.py", "train.py"), "not an event"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_wrong_arguments_are_one_sentence(call: Call, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "train.py").write_text("raise AssertionError\n")
    called = call(*arguments)
    assert called.exit_code == (1 if words == "not an event" else 2)
    assert called.out == ""
    assert words in called.err
    assert called.err.startswith("easyscale: ")
    assert called.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_name_that_is_taken_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "result.json").write_text("{}")
    called = call("run", "--name", "mine", "train.py")
    assert (called.exit_code, called.err.count("\n")) == (2, 1)
    assert "a run named 'mine' is already in runs" in called.err


def test_without_a_command_it_says_what_there_is(call: Call) -> None:
    called = call()
    assert called.exit_code == 2
    assert "verify" in called.err


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["verify", "-h"], ["plan", "-h"], ["--version"]])
def test_help_comes_at_once_without_torch_and_rich(arguments: list[str]) -> None:
    program = f"""
import sys
from easyscale.cli.main import main
code = main({arguments!r})
slow = {{"torch", "numpy", "rich", "safetensors"}} & sys.modules.keys()
assert not slow, slow
sys.exit(code)
"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 20
    assert (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
    )  # 0.1 s on a machine that has nothing else to do


def test_even_placements_are_the_default() -> None:
    from easyscale.cli.options import chosen_placement

    assert chosen_placement(None, None, None) == Placement.parse("0")
    assert chosen_placement(None, "3", None) == Placement.parse("0|1|2")
    assert chosen_placement(5, "2", None) == Placement.parse("0,1,2|3,4")
    assert chosen_placement(3, "2", "2,0|1") == Placement.parse("2,0|1")
