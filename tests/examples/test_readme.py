"""What README.md shows is true: its diff turns a DDP script into one that trains the same model, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from .conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
DIFF = re.search(r"```diff\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = re.findall(r"^(?:easyscale|scripts)[ /].*?(?=\s+#|$)", README, flags=re.MULTILINE)

MY_PROJECT = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

def Net():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

loss_fn = nn.functional.cross_entropy
generator = torch.Generator().manual_seed(1)
train_set = TensorDataset(torch.randn(100, 8, generator=generator), torch.randint(3, (100,), generator=generator))
"""


def side(sign: str) -> str:
    """One of the two scripts of the diff: "-" is the DDP script, "+" ours."""
    assert DIFF is not None
    return "\n".join(line[1:] for line in DIFF[1].splitlines() if line[:1] in ("", " ", sign)) + "\n"


def test_the_diff_is_as_long_as_the_text_says() -> None:
    assert DIFF is not None
    signs = [line[:1] for line in DIFF[1].splitlines()]
    assert f"{signs.count('-')} lines go and {signs.count('+')} come" in README


@pytest.mark.slow
def test_both_sides_of_the_diff_train_the_same_model(python: Any, easyscale_run: Any, tmp_path: Path) -> None:
    models = {}
    for name, sign in (("ddp", "-"), ("easyscale", "+")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "my_project.py").write_text(MY_PROJECT)
        (folder / "train.py").write_text(side(sign))
        if name == "ddp":
            python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "train.py", folder=folder)
        else:
            easyscale_run("--ests", 2, "--rng", "ddp", "--reduction", "ring", "train.py", folder=folder)
        models[name] = torch.load(folder / "model.pt")
    assert models["ddp"].keys() == models["easyscale"].keys()
    for key, tensor in models["ddp"].items():
        assert torch.equal(tensor, models["easyscale"][key]), key


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist_with_their_options(command: str, python: Any) -> None:
    words = command.split()
    if words[0].startswith("scripts/"):
        assert (ROOT / words[0]).stat().st_mode & 0o111
        return
    usage = python("-m", "easyscale", words[1], "--help")
    for option in (word for word in words if word.startswith("--")):
        assert f"{option} " in usage, f"easyscale {words[1]} has no {option}"
