"""``easyscale plan``: what it prints, what its JSON holds, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import rich.style  # noqa: F401, it draws a random number when it is imported first

from cli.conftest import Call

CAPABILITY = "V100=3.1,P100=2.4,T4=1.0"
BASE = ("plan", "--ests", "16", "--capability", CAPABILITY)


def planned(call: Call, *arguments: str) -> dict[str, Any]:
    called = call(*BASE, *arguments, "--json")
    assert (called.exit_code, called.err) == (0, "")
    found: dict[str, Any] = json.loads(called.out)
    return found


def test_the_published_example(call: Call) -> None:
    found = planned(call, "--devices", "V100:2,P100:1", "--determinism", "D1+D2")
    plan = found["plan"]
    assert plan["shares"] == [{"kind": "V100", "devices": 2, "ests": 6}, {"kind": "P100", "devices": 1, "ests": 4}]
    assert plan["speedup"] == pytest.approx(8.27, abs=0.005)
    assert plan["waste"] == pytest.approx(1 - 16 * 3.1 / 6 / 8.6)
    assert plan["mini_batches_per_s"] == pytest.approx(16 * 3.1 / 6)
    assert plan["steps_per_s"] * 16 == pytest.approx(plan["mini_batches_per_s"])
    assert plan["needs"] == "D1+D2"
    assert plan["kind_by_worker"] == ["P100", "V100", "V100"]
    assert plan["placement"] == "0,1,2,3|4,5,6,7,8,9|10,11,12,13,14,15"
    assert [(size["devices"], size["needs"]) for size in found["sizes"]] == [(1, "D1"), (2, "D1"), (3, "D1+D2")]
    assert found["brings_nothing"] == {}
    gains = [proposal["gain_per_device"] for proposal in found["proposals"]]
    assert len(gains) == 3
    assert gains == sorted(gains, reverse=True)


def test_without_d2_no_kinds_are_mixed(call: Call) -> None:
    found = planned(call, "--devices", "V100:2,P100:1")
    assert found["plan"]["shares"] == [{"kind": "V100", "devices": 2, "ests": 8}]
    assert found["brings_nothing"] == {"P100": 1}
    plans = [*found["sizes"], *(proposal["plan"] for proposal in found["proposals"])]
    assert {plan["needs"] for plan in plans} == {"D1"}
    assert {proposal["kind"] for proposal in found["proposals"]} == {"V100"}


def test_memory_sizes_and_synchronising_count(call: Call) -> None:
    found = planned(call, "--devices", "V100:8", "--memory", "V100=8", "--sizes", "2,4,8", "--sync", "1=0,8=1.4")
    assert [size["devices"] for size in found["sizes"]] == [2, 4]
    assert found["plan"]["step_s"] == pytest.approx(4 / 3.1 + 0.6)
    assert found["brings_nothing"] == {"V100": 4}


def test_only_what_is_free_is_proposed(call: Call) -> None:
    found = planned(call, "--devices", "V100:2", "--free", "V100:1,T4:9", "--determinism", "D1+D2", "--proposals", "99")
    proposed = {(proposal["kind"], proposal["count"]) for proposal in found["proposals"]}
    assert ("V100", 1) in proposed
    assert {kind for kind, _ in proposed} == {"V100", "T4"}
    assert max(count for _, count in proposed) <= 9
    assert planned(call, "--devices", "V100:2", "--proposals", "0")["proposals"] == []


def test_the_tables_say_the_same(call: Call) -> None:
    called = call(*BASE, "--devices", "V100:2,P100:1,T4:0", "--determinism", "D1+D2")
    assert called.exit_code == 0
    for words in ("16 ESTs on V100:2,P100:1 at D1+D2", "8.27x", "3.9%", "D1+D2", "more devices", "3 V100", "+33.3%"):
        assert words in called.out
    assert "plan: 2 V100 x 6 + 1 P100 x 4 (placement 0,1,2,3|4,5,6,7,8,9|10,11,12,13,14,15)" in called.out
    assert "bring nothing" not in called.out


def test_what_brings_nothing_is_named(call: Call) -> None:
    called = call(*BASE, "--devices", "V100:16,T4:4", "--determinism", "D1+D2")
    assert "bring nothing: T4:4, which can be given back" in called.out
    assert "nothing that could be added makes it faster" in called.out


def test_it_runs_without_torch_and_numpy() -> None:
    arguments = [*BASE, "--devices", "V100:2,P100:1"]
    program = f"""
import sys
from easyscale.cli.main import main
code = main({arguments!r})
assert not {{"torch", "numpy"}} & sys.modules.keys()
sys.exit(code)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "2 V100 x 8" in ran.stdout


REFUSED = [
    (("--devices", "V100"), "each as KIND:NUMBER: write it as V100:2,T4:4"),
    (("--devices", "V100:two"), "'two' is not a number for V100"),
    (("--devices", "V100:1,V100:2"), "names V100 twice"),
    (("--devices", "V100:-1"), "gives -1 devices of V100"),
    (("--devices", "K80:1"), "--devices names K80, for which --capability gives no speed"),
    (("--devices", "V100:1", "--free", "K80:1"), "--free names K80"),
    (("--devices", "V100:0"), "16 ESTs do not fit on no devices"),
    (("--devices", "V100:2", "--memory", "V100=4"), "there is room for 8 on devices of one kind"),
    (("--devices", "V100:2", "--memory", "V100=4", "--determinism", "D1+D2"), "there is room for 8 on devices, so"),
    (("--devices", "V100:2", "--memory", "K80=4"), "a memory limit was given for K80"),
    (("--devices", "V100:2", "--memory", "V100:4"), "each as KIND=NUMBER"),
    (("--devices", "V100:3", "--sizes", "4,8"), "with 4, 8 devices, which --sizes allows"),
    (("--devices", "V100:3", "--sizes", "a few"), "write it as --sizes 1,2,4"),
    (("--devices", "V100:3", "--sizes", "0"), "each must be 1 or more"),
    (("--devices", "V100:3", "--sync", "1:0"), "write it as --sync 1=0,8=0.05"),
    (("--devices", "V100:3", "--determinism", "D2"), "'D2' is not one of"),
    (("--devices", "V100:3", "--ests", "0"), "num_ests is 0"),
    (("--devices", "V100:3", "--capability", "V100=0"), "the capability of V100 is 0"),
    ((), "give --ests and --devices too"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_wrong_arguments_are_one_sentence(call: Call, arguments: tuple[str, ...], words: str) -> None:
    called = call(*BASE, *arguments)
    assert (called.exit_code, called.out) == (2, "")
    assert words in called.err
    assert called.err.startswith("easyscale: ")
    assert called.err.count("\n") == 1
