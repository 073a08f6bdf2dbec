"""``verify`` and ``compare``: equal is equal, and what differs is named to the last index."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Call, Called

CallScript = Callable[..., Called]

pytestmark = pytest.mark.draws_random_numbers  # rich numbers its styles with them, in this process only

EQUAL = "from tiny import steps\nsteps(3)\nprint('hidden')"

DIFFERENT = """
    from tiny import steps, weight, context
    def change(step):
        if step == 2 and len(context.placement.ranks_by_worker) > 1:
            weight[1] += 0.25
    steps(4, change=change)
    """


def test_equal_runs_are_proved_equal(call_script: CallScript) -> None:
    called = call_script(EQUAL, "verify", "--ests", 3, "--workers", "1,3", "--placement", "2,0|1", ...)
    assert (called.exit_code, called.err) == (0, "")
    assert "equal: 3 runs, 3 global steps, every digest the same" in called.out
    assert "2,0|1" in called.out
    assert "hidden" not in called.out
    assert not Path("runs").exists()


def test_a_difference_is_named_with_step_tensor_index_and_values(call_script: CallScript) -> None:
    called = call_script(DIFFERENT, "verify", "--ests", 2, "--json", ...)
    assert called.exit_code == 1
    found = json.loads(called.out)
    assert [run["equal"] for run in found["runs"]] == [True, False]
    difference = found["difference"]
    assert difference["runs"] == ["0,1", "0|1"]
    assert (difference["global_step"], difference["tensors"]) == (2, ["weight"])
    assert difference["is_reproduced"] is True
    first = difference["first"]
    assert (first["tensor"], first["index"], first["values"]) == ("tied", [1], ["3.0", "3.25"]) or (
        (first["tensor"], first["index"], first["values"]) == ("weight", [1], ["3.0", "3.25"])
    )
    assert first["max_abs_difference"] == 0.25


def test_a_difference_is_told_in_words(call_script: CallScript) -> None:
    called = call_script(DIFFERENT, "verify", "--ests", 2, ...)
    assert called.exit_code == 1
    assert "different: 0,1 and 0|1: global step 2 is the first that differs, tensor weight\n" in called.out
    assert "run again up to global step 2: tensor weight[1]: 3.0 and 3.25" in called.out


def test_a_script_that_does_not_repeat_is_told_apart(call_script: CallScript) -> None:
    source = """
        import os
        from tiny import steps, weight
        first = not os.path.exists("been-here")
        open("been-here", "w").close()
        steps(2, change=lambda step: weight.add_(1) if first else None)
        """
    called = call_script(source, "verify", "--ests", 1, "--workers", "1,1", ...)
    assert called.exit_code == 1
    assert "the script itself does not repeat" in called.out


def test_another_number_of_steps_is_a_difference(call_script: CallScript) -> None:
    source = "from tiny import steps, ranks\nsteps(1 + len(ranks))"
    called = call_script(source, "verify", "--ests", 2, ...)
    assert called.exit_code == 1
    assert "0,1 recorded 3 global steps, 0|1 2: global step 2 is in one alone" in called.out


def test_nothing_to_compare_is_refused(call_script: CallScript) -> None:
    called = call_script("print('hello')", "verify", ...)
    assert called.exit_code == 2
    assert "opened no session, so nothing was compared" in called.err


def test_a_run_that_fails_shows_the_users_error(call_script: CallScript) -> None:
    called = call_script("raise ValueError('no')", "verify", "--run-dir", "kept", ...)
    assert called.exit_code == 1
    assert called.err.count("ValueError: no") == 1
    assert called.err.endswith("easyscale: nothing was proved, the run on 0,1,2,3 failed\n")


def test_against_ddp_runs_the_reference_first(call_script: CallScript) -> None:
    source = """
        from tiny import steps, context
        print(context.placement, dict(context.overrides))
        steps(1)
        """
    called = call_script(source, "verify", "--ests", 2, "--against", "ddp", "--workers", 1, "--run-dir", "kept", ...)
    assert called.exit_code == 0
    assert "DDP, 2 processes" in called.out
    (folder,) = Path("kept").iterdir()
    logs = {path.name: (path / "logs" / "worker-0.log").read_text() for path in folder.iterdir()}
    given = "{'rng': 'ddp', 'reduction': 'ring', 'threads': 1"
    assert logs == {"1-ddp": f"0|1 {given}, 'backend': 'ddp'}}\n", "2-1-workers": f"0,1 {given}}}\n"}


def test_recorded_runs_compare_step_by_step(call_script: CallScript, call: Call) -> None:
    call_script(DIFFERENT, "verify", "--ests", 2, "--run-dir", "kept", ...)
    (folder,) = Path("kept").iterdir()
    one, two = str(folder / "1-1-workers"), str(folder / "2-2-workers" / "events.jsonl")
    same = call("compare", one, one)
    assert (same.exit_code, same.out) == (0, "equal: 4 global steps\n")
    different = call("compare", one, two)
    assert different.exit_code == 1
    assert different.out.startswith("different: global step 2 is the first that differs, tensor weight (compared: 4")
    assert json.loads(call("compare", "--json", one, two).out)["tensors"] == ["weight"]


def test_runs_that_were_not_watched_compare_at_their_end(call: Call, tmp_path: Path) -> None:
    for name, digest in (("a", "1" * 64), ("b", "1" * 64), ("c", "2" * 64), ("d", None)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps({"digest": digest}))
    same = call("compare", "a", "b")
    assert same.exit_code == 0
    assert same.out.startswith("equal: the final digest only")
    different = call("compare", "a", "c")
    assert different.exit_code == 1
    assert "final digests differ: 111111111111… and 222222222222…" in different.out
    refused = call("compare", "a", "d")
    assert (refused.exit_code, refused.out) == (2, "")
    assert "d recorded no digest" in refused.err


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        ([1.0, 2.0], [1.0, 2.5], "tensor w[1]: 2.0 and 2.5 (largest difference in this tensor: 0.5)"),
        ([0.0], [-0.0], "tensor w[0]: 0.0 and -0.0 (largest difference in this tensor: 0)"),
        ([float("nan")], [1.0], "tensor w[0]: nan and 1.0\n"),
        ([1.0], [1.0, 2.0], "tensor w: float32[1] and float32[2]"),
        (1.0, 2.0, "tensor w: 1.0 and 2.0"),
        ([1, 2], [1, 3], "tensor w[1]: 2 and 3"),
        ([True], [False], "tensor w[0]: True and False"),
    ],
)
def test_two_files_of_tensors(call: Call, left: object, right: object, words: str) -> None:
    import torch
    from safetensors.torch import save_file

    for name, values in (("a", left), ("b", right)):
        save_file({"v": torch.ones(2, dtype=torch.bfloat16), "w": torch.tensor(values)}, f"{name}.safetensors")
    different = call("compare", "a.safetensors", "b.safetensors")
    assert different.exit_code == 1
    assert words in different.out
    same = call("compare", "a.safetensors", "a.safetensors")
    assert (same.exit_code, same.out) == (0, "equal: 2 tensors\n")


def test_files_with_other_tensors_differ(call: Call) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"v": torch.ones(1)}, "a.safetensors")
    save_file({"u": torch.ones(1)}, "b.safetensors")
    called = call("compare", "--json", "a.safetensors", "b.safetensors")
    assert json.loads(called.out)["difference"]["reason"] == "only in the second"
    (Path("c.safetensors")).write_bytes(b"no tensors")
    assert call("compare", "a.safetensors", "c.safetensors").exit_code == 2
    assert call("compare", "a.safetensors", ".").exit_code == 2
