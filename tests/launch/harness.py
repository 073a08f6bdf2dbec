"""What tests of runs share: tiny scripts that know no session, a listener that remembers, a search for leftovers."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from easyscale.core import events
from easyscale.core.events import CheckpointEvent, Event, PlanEvent, RescaleEvent, ResumeEvent, StepEvent
from easyscale.launch.run import RunResult

TINY_SESSION = '''
"""What a session tells the observer, without a session."""
import hashlib, torch
from easyscale.train import runtime

context = runtime.current()
observer = context.observer
ranks = context.placement.ranks_by_worker[context.worker_rank]
weight = torch.zeros(3)

def fingerprint():
    return {"weight": hashlib.sha256(weight.numpy().tobytes()).hexdigest(), "bias": "00"}

def state():
    return {"weight": weight, "tied": weight, "lr": 0.1, "count": 7}

def steps(n, body=lambda step, rank: None, change=lambda step: None):
    for step in range(n):
        scalars = {}
        for rank in ranks:
            observer.turn(rank)
            body(step, rank)
            scalars[rank] = {"loss": float(step * 10 + rank)}
        observer.turn(None)
        weight.add_(1)
        change(step)
        observer.step(runtime.StepRecord(step, 0, n, 0.001, scalars, fingerprint, state))
'''


class Recorder:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.text = {"stdout": "", "stderr": ""}
        self.steps: list[StepEvent] = []
        self.totals: list[int | None] = []
        self.rescales: list[RescaleEvent] = []
        self.plans: list[PlanEvent] = []
        self.notices: list[str] = []
        self.checkpoints: list[CheckpointEvent | ResumeEvent] = []
        self.on_rescale: Callable[[RescaleEvent], None] = lambda event: None
        self.on_step: Callable[[StepEvent], None] = lambda event: None
        self.on_output: Callable[[str], None] = lambda text: None

    def output(self, stream: str, text: str) -> None:
        self.text[stream] += text
        self.on_output(text)

    def step(self, event: StepEvent, total_steps: int | None) -> None:
        self.steps.append(event)
        self.totals.append(total_steps)
        self.on_step(event)

    def planned(self, event: PlanEvent) -> None:
        self.plans.append(event)

    def rescale(self, event: RescaleEvent) -> None:
        self.rescales.append(event)
        self.on_rescale(event)

    def checkpoint(self, event: CheckpointEvent | ResumeEvent) -> None:
        self.checkpoints.append(event)

    def notice(self, sentence: str) -> None:
        self.notices.append(sentence)

    def tick(self) -> None:
        return


@dataclass
class Ran:
    """A run that is over."""

    result: RunResult
    recorder: Recorder = field(repr=False)

    @property
    def out(self) -> str:
        return self.recorder.text["stdout"]

    @property
    def err(self) -> str:
        return self.recorder.text["stderr"]

    def log(self, name: str) -> str:
        return (self.result.folder.logs / name).read_text()

    def events(self) -> list[Event]:
        return list(events.read(self.result.folder.path / events.FILE_NAME))


def leftovers(folder: Path) -> list[psutil.Process]:
    """Living processes that work in the test's folder, which everything that a run starts does."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_alive = process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid()
            if is_alive and process.cwd() == str(folder):
                found.append(process)
    return found


def write_script(folder: Path, source: str) -> Path:
    """``train.py`` with this source, beside ``tiny.py``."""
    (folder / "tiny.py").write_text(TINY_SESSION)
    path = folder / "train.py"
    path.write_text(textwrap.dedent(source))
    return path
