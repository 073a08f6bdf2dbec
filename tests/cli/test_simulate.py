"""``easyscale simulate``: tables, JSON, files, pictures, refusals; and all of it without torch."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rich.style  # noqa: F401, it draws a random number when it is imported first

from cli.conftest import Call
from sim.cases import shared

SMALL = ("simulate", "--generate", "30", "--days", "0.1", "--seed", "5")

WITHOUT = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
from easyscale.cli.main import main
code = main(sys.argv[1:])
assert not {blocked!r} & sys.modules.keys()
sys.exit(code)
"""


def without(blocked: set[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process where these packages are not installed."""
    code = WITHOUT.format(blocked=blocked)
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def simulated(call: Call, *arguments: str) -> dict[str, Any]:
    called = call(*SMALL, *arguments, "--json")
    assert (called.exit_code, called.err) == (0, "")
    found: dict[str, Any] = json.loads(called.out)
    return found


def rows_of(path: str) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_several_policies_are_compared_in_one_call(call: Call) -> None:
    called = call(*SMALL, "--policy", "easyscale,fifo,backfill,srtf,one-at-a-time,easyscale-homo,easyscale-short")
    assert called.exit_code == 0
    for name in ("easyscale", "fifo", "one-at-a-time", "mean JCT", "30 jobs"):
        assert name in called.out
    found = simulated(call, "--policy", "easyscale,fifo")
    assert [each["policy"] for each in found["policies"]] == ["easyscale", "fifo"]
    easyscale, fifo = found["policies"]
    assert found["mean_jct_ratio"]["easyscale"]["fifo"] == fifo["mean_jct_s"] / easyscale["mean_jct_s"]
    assert easyscale["unfinished"] == 0


def test_a_terminal_gets_a_progress_bar(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(*SMALL).err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert "easyscale" in call(*SMALL).err


def test_equal_calls_give_equal_bytes(call: Call) -> None:
    for folder in ("one", "two"):
        call(*SMALL, "--failures", "2", "--out", folder, "--policy", "easyscale,fifo")
    names = sorted(path.name for path in Path("one").iterdir())
    assert names == [
        "jobs-easyscale.csv",
        "jobs-fifo.csv",
        "report.json",
        "timeline-easyscale.csv",
        "timeline-fifo.csv",
    ]
    for name in names:
        assert (Path("one") / name).read_bytes() == (Path("two") / name).read_bytes()


def test_the_csv_of_jobs_adds_up(call: Call) -> None:
    report = simulated(call, "--out", "out")
    rows = rows_of("out/jobs-easyscale.csv")
    assert len(rows) == report["jobs"] == 30
    mean_s = sum(float(row["jct_s"]) for row in rows) / len(rows)
    assert mean_s == pytest.approx(report["policies"][0]["mean_jct_s"])
    timeline = rows_of("out/timeline-easyscale.csv")
    assert all(int(row["held_V100"]) <= int(row["there_V100"]) == 32 for row in timeline)
    assert int(timeline[-1]["held_V100"]) == 0


def test_a_trace_written_is_a_trace_read(call: Call) -> None:
    drawn = simulated(call, "--trace-out", "trace.csv")
    called = call("simulate", "--trace", "trace.csv", "--json")
    assert json.loads(called.out)["policies"] == drawn["policies"]


def test_a_policy_of_ones_own_is_one_function(call: Call) -> None:
    Path("mine.py").write_text(
        "from easyscale.schedule.cluster import Decision\n\n"
        "def first_come(books):\n"
        "    for record in books.waiting():\n"
        "        if books.free[0] and 'V100' in record.job.model.capability_by_kind:\n"
        "            yield Decision(record, (1,) + (0,) * (len(books.kinds) - 1))\n\n"
        "def greedy(books):\n"
        "    for record in books.waiting():\n"
        "        yield Decision(record, (99, 0, 0))\n"
    )
    found = simulated(call, "--policy", "mine:first_come,fifo")
    assert found["policies"][0]["policy"] == "mine:first_come"
    assert found["policies"][0]["unfinished"] == 0
    refused = call(*SMALL, "--policy", "mine:greedy")
    assert refused.exit_code == 2
    assert "policy 'mine:greedy' gave" in refused.err
    sys.modules.pop("mine")


def test_it_runs_without_torch() -> None:
    run = without({"torch", "numpy", "matplotlib"}, *SMALL, "--policy", "easyscale,fifo", "--json")
    assert (run.returncode, run.stderr) == (0, "")
    assert len(json.loads(run.stdout)["policies"]) == 2


def test_plots_without_matplotlib_say_how_to_get_it(tmp_path: Path) -> None:
    run = without({"matplotlib"}, *SMALL, "--out", str(tmp_path / "out"), "--plots")
    assert run.returncode == 2
    assert run.stderr == (
        "easyscale: plots need matplotlib, which is not installed: pip install 'easyscale-torch[plots]', "
        "or leave --plots out\n"
    )
    assert not (tmp_path / "out").exists(), "nothing is simulated before that is known"


@pytest.mark.slow
def test_plots_are_drawn_as_png_and_svg_and_are_the_same_each_time(call: Call) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plots' is not installed")
    command = [sys.executable, "-m", "easyscale", *SMALL, "--plots", "--out"]
    for folder in ("one", "two"):
        subprocess.run([*command, folder], check=True, capture_output=True)
    drawn = sorted(path.name for path in Path("one").iterdir() if path.suffix in (".png", ".svg"))
    stems = ("allocation-easyscale", "gantt-easyscale", "jct", "waste-easyscale")
    assert drawn == sorted(f"{stem}.{suffix}" for stem in stems for suffix in ("png", "svg"))
    for name in drawn:
        content = (Path("one") / name).read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n" or b"<svg" in content
        assert content == (Path("two") / name).read_bytes()


def test_serving_failures_networks_and_costs(call: Call) -> None:
    Path("curve.csv").write_text("t_s,gpus\n0,10\n3600,20\n7200,5\n")
    Path("duty.csv").write_text("t_s,percent\n0,50\n")
    options = ("--serving", "curve.csv", "--serving-duty", "duty.csv", "--until", "0.125", "--backlog")
    found = simulated(call, *options, "--rescale-cost", "1,conv=5", "--network", "8:0.01:0.1", "--failures", "1")
    serving = found["policies"][0]["serving"]
    assert serving["allocation_without"] == pytest.approx((10 + 20 + 5) / 3 / 64)
    assert serving["utilisation_without"] == pytest.approx((10 + 20 + 5) / 3 / 64 / 2)
    assert serving["allocation_with"] > serving["allocation_without"]
    assert serving["give_back_max_s"] <= 5
    called = call(*SMALL, *options)
    assert "allocated 18.2% by serving alone" in called.out


def test_the_published_figures_from_the_command_line(call: Call) -> None:
    trace, times = shared("paper/workload_test.csv"), shared("step_times/easyscale_step_times.csv")
    options = ("--published", "--trace", str(trace), "--step-times", str(times), "--mode", "D1+D2 hetero")
    for fixed_share, figures in (("0", [(12720, 5324.8), (5460, 510.4)]), ("1", [(16500, 8740.7), (6840, 1152.0)])):
        called = call("simulate", *options, "--fixed-share", fixed_share, "--policy", "yarn-cs,homo", "--json")
        found = [(each["makespan_s"], round(each["mean_jct_s"], 1)) for each in json.loads(called.out)["policies"]]
        assert found == figures
    assert "12720" in call("simulate", *options, "--policy", "yarn-cs").out


WRONG = [
    ((), "give jobs either with --trace FILE or with --generate JOBS"),
    (("--trace", "none.csv"), "trace none.csv does not exist"),
    (("--trace", "a.csv", "--generate", "3"), "give jobs either with --trace FILE or with --generate JOBS"),
    (("--generate", "0"), "give 1 job or more"),
    (("--generate", "3", "--cluster", "V100"), "write it as V100:32,P100:16"),
    (("--generate", "3", "--cluster", "TPU:4"), "no speeds are known for TPU"),
    (("--generate", "3", "--policy", "best"), "no policy is called 'best': choose from easyscale, "),
    (("--generate", "3", "--policy", "fifo,fifo"), "names a policy twice"),
    (("--generate", "3", "--policy", "nowhere:none"), "No module named 'nowhere'"),
    (("--generate", "3", "--policy", "json:none"), "json has no function none"),
    (("--generate", "3", "--plots"), "add --out DIR"),
    (("--generate", "3", "--rescale-cost", "x"), "write 1 or 1,bert=2"),
    (("--generate", "3", "--rescale-cost", "1,gpt=2"), "given for gpt"),
    (("--generate", "3", "--network", "8"), "write it as 8:0.002:0.03"),
    (("--generate", "3", "--serving", "none.csv"), "curve none.csv does not exist"),
    (("--generate", "3", "--interval", "-1"), "interval_s is -1"),
    (("--generate", "3", "--device-trace", "none.csv"), "none.csv does not exist"),
    (("--generate", "3", "--published"), "--published is for the published trace alone"),
    (("--generate", "many"), "'many' is not a valid integer"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_wrong_use_is_told_in_one_sentence(arguments: tuple[str, ...], words: str, call: Call) -> None:
    called = call("simulate", *arguments)
    assert (called.exit_code, called.out) == (2, "")
    assert words in called.err
    assert called.err.count("\n") == 1
