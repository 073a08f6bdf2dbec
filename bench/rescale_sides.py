"""The two sides of the rescale bench: a run whose workers are changed and killed, and what each change cost it."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from easyscale.launch.control import ask
from stamps import Stamps, Tail, is_alive, wait_until

JOB = Path(__file__).with_name("rescale_job.py")
FIRST_WORKERS = 2
NUM_ESTS = 4


@dataclass
class Change:
    """One change of membership, measured.

    Attributes:
        what: "2-4", say, or "kill".
        pause_s: from the last finished step before to the first one after, without a usual step.
        after_s: from the command, or the kill, to the first finished step after it.
        step_s: a usual step afterwards.
        redone: mini-batches of finished steps that were done again.
        phases: where the time went, as the run says.
        still_s: the "pause" of steps after which nothing changed: what neighbours on the machine do to the number.
    """

    what: str
    pause_s: float
    after_s: float
    step_s: float
    redone: int
    phases: dict[str, float] = field(default_factory=dict)
    still_s: list[float] = field(default_factory=list)


def environment() -> dict[str, str]:
    """For both sides: one thread, the loopback interface; and torchrun's nodes can join (a fault of torch 2.13)."""
    search = [str(Path(__file__).parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, search)),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


class Side:
    """A run, started with two workers and ended with the block.

    Args:
        folder: its own.
        size: of the model.
        settle: steps to wait for between two changes.
    """

    def __init__(self, folder: Path, size: str, settle: int) -> None:
        self._folder = folder
        self._size = size
        self._settle = settle
        self._processes: list[subprocess.Popen[bytes]] = []
        self._random = random.Random(0)
        self._log = (folder / "output.log").open("wb")
        (folder / "stamps").mkdir()
        self.stamps = Stamps(folder / "stamps")

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
        for process in self._processes:
            process.kill()
            process.wait()
        self._log.close()
        self.stamps.read()
        for pid in filter(is_alive, self.stamps.by_pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if isinstance(error, TimeoutError):
            sys.stderr.write((self._folder / "output.log").read_text(errors="replace")[-4000:])

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        command = (sys.executable, "-m", *command)
        process = subprocess.Popen(command, env=environment(), stdout=self._log, stderr=self._log, cwd=self._folder)
        self._processes.append(process)
        return process

    def settle(self) -> None:
        """Let it train for some steps without a change."""
        self.stamps.read()
        goal = self.stamps.last_step + self._settle
        self._wait_for_step(goal)

    def _wait_for_step(self, goal: int) -> None:
        def is_there() -> bool:
            self.stamps.read()
            return self.stamps.last_step >= goal

        wait_until(is_there, f"step {goal} of {self._folder}")

    def _moment(self, step_s: float) -> None:
        """Let a random part of a step pass, so that a kill may come anywhere in one."""
        time.sleep(self._random.random() * step_s)

    def _usual_step_s(self, first: int) -> float:
        """A usual step from ``first`` on, where a change came; the first one of all belongs to the change."""
        self._wait_for_step(first + self._settle)
        return self.stamps.usual_step_s(first + 1, first + self._settle)


class EasyScaleRun(Side):
    """``easyscale run``, changed by what ``easyscale scale`` sends."""

    def __init__(self, folder: Path, size: str, settle: int) -> None:
        super().__init__(folder, size, settle)
        self._events = Tail(folder / "runs" / "job" / "events.jsonl")
        self._rescales: list[dict[str, Any]] = []
        self._workers = FIRST_WORKERS
        self._alone_step_s = 0.0
        job = ("--ests", str(NUM_ESTS), "--placement", "0,1|2,3", "--workers", "1:4", "--max-failures", "20")
        self._start(
            *("easyscale", "run", "--name", "job", "--run-dir", "runs", "--quiet", *job),
            *(str(JOB), "easyscale", size, str(folder / "stamps")),
        )
        self._wait_for_step(0)
        self.settle()

    def _next_rescale(self) -> dict[str, Any]:
        """The next change that the run tells of."""

        def is_told() -> bool:
            events = [json.loads(line) for line in self._events.lines()]
            self._rescales += [event for event in events if event["type"] == "rescale"]
            return bool(self._rescales)

        wait_until(is_told, f"a change of {self._folder}")
        return self._rescales.pop(0)

    def scale(self, workers: int) -> Change:
        """A planned change."""
        before, self._workers = self._workers, workers
        asked_at = time.time()
        ask(self._folder / "runs", "job", {"ask": "scale", "workers": workers})
        change = self._measure(self._next_rescale(), f"{before}-{workers}", asked_at)
        if workers == 1:
            self._alone_step_s = change.step_s
        return change

    def _measure(self, event: dict[str, Any], what: str, began_at: float) -> Change:
        step, repeated = event["global_step"], self.stamps.repeated()
        step_s = self._usual_step_s(step)
        done_at = self.stamps.finished_at(step)
        pause_s = done_at - self.stamps.finished_at(step - 1) - step_s
        redone = NUM_ESTS * (self.stamps.repeated() - repeated)
        still_s = [one - step_s for one in self.stamps.steps_s(step + 1, step + self._settle)]
        return Change(what, pause_s, done_at - began_at, step_s, redone, event["seconds"], still_s)

    def kill(self) -> Change:
        """SIGKILL to one of the workers; the run replaces it, which is waited for."""
        self.stamps.read()
        step, usual = self.stamps.last_step, self.stamps.usual_step_s(self.stamps.last_step - 2, self.stamps.last_step)
        there = [pid for pid, stamps in self.stamps.by_pid.items() if is_alive(pid) and stamps[-1][0] >= step - 1]
        victim = self._random.choice(there)
        self._moment(usual)
        killed_at = time.time()
        os.kill(victim, signal.SIGKILL)
        loss = self._next_rescale()
        replacement = self._next_rescale()
        assert (loss["reason"], replacement["reason"]) == ("loss", "replacement"), (loss, replacement)
        self._wait_for_step(replacement["global_step"] + self._settle)
        first, last = loss["global_step"], replacement["global_step"]
        done_at = self.stamps.finished_at(first)
        # The replacement may come after so few steps that none of them is usual.
        step_s = self.stamps.usual_step_s(first + 1, last - 1) if last - first > 3 else self._alone_step_s
        pause_s = done_at - self.stamps.finished_at(first - 1) - step_s
        return Change("kill", pause_s, done_at - killed_at, step_s, 0, loss["seconds"])


class TorchrunRun(Side):
    """An elastic job of torchrun: agents of one worker each, as many as there are workers.

    Args:
        every: steps between two checkpoints.
    """

    def __init__(self, folder: Path, size: str, settle: int, every: int) -> None:
        super().__init__(folder, size, settle)
        self._every = every
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._agents = [self._start_agent(is_host=number == 0) for number in range(FIRST_WORKERS)]
        self._wait_for_generation(frozenset())
        self._settle_here()

    def _start_agent(self, *, is_host: bool = False) -> subprocess.Popen[bytes]:
        conf = f"is_host={int(is_host)},last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
        return self._start(
            *("torch.distributed.run", "--nnodes", "1:4", "--nproc-per-node", "1", "--max-restarts", "1000"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}", "--rdzv-id", "job"),
            *("--rdzv-conf", conf),
            *("--local-addr", "127.0.0.1", "--monitor-interval", "0.1"),
            *(str(JOB), "ddp", self._size, str(self._folder / "stamps")),
            *(str(self._folder / "checkpoint"), str(self._every)),
        )

    def _alive(self) -> frozenset[int]:
        return frozenset(filter(is_alive, self.stamps.by_pid))

    def _wait_for_generation(self, old: frozenset[int]) -> None:
        """As many new processes as there are agents have finished a step."""

        def is_there() -> bool:
            self.stamps.read()
            return len(self._alive() - old) == len(self._agents)

        wait_until(is_there, f"a generation of {len(self._agents)} in {self._folder}")

    def _settle_here(self) -> None:
        """``settle``, for the processes of this generation: steps may be those of an earlier one."""
        self.stamps.read()
        here = self._alive()
        goal = {pid: len(self.stamps.by_pid[pid]) + self._settle for pid in here}

        def is_there() -> bool:
            self.stamps.read()
            return all(len(self.stamps.by_pid[pid]) >= number for pid, number in goal.items())

        wait_until(is_there, f"{self._settle} more steps in {self._folder}")

    def scale(self, workers: int) -> Change:
        """A planned change: agents are started, or asked to end. The first one keeps the rendezvous."""
        before, old, running = len(self._agents), self._seen(), self._alive()
        began_at = time.time()
        for agent in self._agents[workers:]:
            agent.terminate()
        del self._agents[workers:]
        self._agents += [self._start_agent() for _ in range(workers - before)]
        return self._measure(f"{before}-{workers}", began_at, old, running)

    def kill(self) -> Change:
        """SIGKILL to one of the workers; its agent starts all anew, with as many as before."""
        old, running = self._seen(), self._alive()
        victim = self._random.choice(sorted(running))
        self._moment(self._step_s_of(victim))
        began_at = time.time()
        os.kill(victim, signal.SIGKILL)
        return self._measure("kill", began_at, old, running)

    def _seen(self) -> frozenset[int]:
        self.stamps.read()
        return frozenset(self.stamps.by_pid)

    def _step_s_of(self, pid: int) -> float:
        (_, before), (_, after) = self.stamps.by_pid[pid][-2:]
        return after - before

    def _measure(self, what: str, began_at: float, old: frozenset[int], running: frozenset[int]) -> Change:
        self._wait_for_generation(old)
        self._settle_here()
        new = self._alive() - old
        first = min(self.stamps.by_pid[pid][0][0] for pid in new)
        done_at = max(self.stamps.by_pid[pid][0][1] for pid in new)
        ends = list(zip(*([when for _, when in self.stamps.by_pid[pid]] for pid in new), strict=False))
        steps = sorted(max(b) - max(a) for a, b in zip(ends, ends[1:], strict=False))
        step_s = steps[len(steps) // 2]
        stopped_at, last = max((self.stamps.by_pid[pid][-1][1], self.stamps.by_pid[pid][-1][0]) for pid in running)
        redone = len(running) * max(0, last + 1 - first)
        return Change(what, done_at - stopped_at - step_s, done_at - began_at, step_s, redone)


def run_cycle(side: EasyScaleRun | TorchrunRun) -> Iterator[Change]:
    """2 -> 4 -> 3 -> 1 -> 2 workers, and a kill of one of the two."""
    for workers in (4, 3, 1, 2, None):
        change = side.kill() if workers is None else side.scale(workers)
        print(f"{type(side).__name__} {change}", file=sys.stderr, flush=True)
        yield change
