"""Changes of the workers of a job that trains, in process, against torchrun's elastic restart.

Each run begins on two workers and goes 2 -> 4 -> 3 -> 1 -> 2 as ``easyscale scale`` asks for it, and one worker is
killed by SIGKILL at a random moment of a step. The DDP script does the same under torchrun, with checkpoints. Sizes: a
CNN of 82,000 parameters, and a Transformer of 105 million with momentum, 840 MB of state which joiners are sent. The
two sides take turns.

Pause: from the last global step finished before a change to the first one finished after it (by all workers, by their
own clocks), minus the median step afterwards. Aims: at most 60 ms in the median and 100 times shorter than torchrun's;
from a SIGKILL to the next finished step at most 150 ms and two steps; nothing that was finished is done again.
``without_change`` is the same number for steps after which nothing changed: a busy machine makes it large. ``copy`` is
what sending as many bytes over gloo costs alone, without looking at what is sent.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from common import report
from rescale_sides import Change, EasyScaleRun, TorchrunRun, run_cycle

SETTLE = {"small": 10, "large": 2}
EVERY = {"small": 50, "large": 10}
CHUNK = 32 << 20


def measure(size: str, rounds: int, cycles: int, *, has_torchrun: bool) -> dict[str, Any]:
    """All changes of one size of model."""
    ours: list[Change] = []
    theirs: list[Change] = []
    repeated = 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder, EasyScaleRun(Path(folder), size, SETTLE[size]) as run:
            for _ in range(cycles):
                ours += run_cycle(run)
            repeated += run.stamps.repeated()
        if has_torchrun:
            with (
                tempfile.TemporaryDirectory() as folder,
                TorchrunRun(Path(folder), size, SETTLE[size], EVERY[size]) as restarted,
            ):
                theirs += run_cycle(restarted)
    results: dict[str, Any] = {"easyscale": summary(ours), "steps_repeated": repeated}
    if theirs:
        results["torchrun"] = {"checkpoint_every": EVERY[size], **summary(theirs)}
        results["times_shorter"] = round(
            results["torchrun"]["planned"]["pause_ms"] / results["easyscale"]["planned"]["pause_ms"], 1
        )
    return results


def summary(changes: Sequence[Change]) -> dict[str, Any]:
    """Median and worst of each kind of change, and of all planned ones."""
    planned = [change for change in changes if change.what != "kill"]
    kinds = {change.what: [one for one in changes if one.what == change.what] for change in changes}
    return {"planned": _of(planned), **{what: _of(some) for what, some in kinds.items()}}


def _of(changes: Sequence[Change]) -> dict[str, Any]:
    after = [change.after_s for change in changes]
    phases = sorted({name for change in changes for name in change.phases})
    facts = {
        "number": len(changes),
        **_both("pause", [change.pause_s for change in changes]),
        **_both("command_to_step", after),
        "step_ms": _ms([change.step_s for change in changes]),
        "redone": statistics.median(change.redone for change in changes),
        "worst_redone": max(change.redone for change in changes),
    }
    still = sorted(one for change in changes for one in change.still_s)
    if still:
        facts["without_change_ms"] = {"p90": _ms([still[int(0.9 * len(still))]]), "worst": _ms([still[-1]])}
    if all(change.what == "kill" for change in changes):
        facts.update(_both("kill_to_step_without_two_steps", [one.after_s - 2 * one.step_s for one in changes]))
    if phases:
        facts["phases_ms"] = {name: _ms([one.phases[name] for one in changes if name in one.phases]) for name in phases}
    return facts


def _both(name: str, seconds: Sequence[float]) -> dict[str, float]:
    return {f"{name}_ms": _ms(seconds), f"worst_{name}_ms": round(1e3 * max(seconds), 1)}


def _ms(seconds: Sequence[float]) -> float:
    return round(1e3 * statistics.median(seconds), 1)


def copy(num_bytes: int, pairs: int, rounds: int, *, is_new: bool) -> dict[str, Any]:
    """What it costs to send bytes from one process to another, as many pairs at once as a change has.

    Args:
        is_new: half of them are received into memory that was never used, as a joiner's optimizer state is.
    """
    method = multiprocessing.get_context("spawn")
    results = method.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (2 * pairs, folder, num_bytes, rounds, results, is_new)
        processes = [method.Process(target=_copier, args=(rank, *arguments)) for rank in range(2 * pairs)]
        for process in processes:
            process.start()
        times = [results.get() for _ in range(pairs)]
        for process in processes:
            process.join()
    return {
        "pairs": pairs,
        "half_in_new_memory": is_new,
        **_both("copy", [max(one) for one in zip(*times, strict=True)]),
    }


def _copier(rank: int, size: int, folder: str, num_bytes: int, rounds: int, results: Any, is_new: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", size), rank=rank, world_size=size)
    memory = torch.zeros(num_bytes, dtype=torch.uint8)
    times = []
    for _ in range(rounds):
        dist.barrier()
        start = time.perf_counter()
        chunks = list(memory.split(CHUNK))
        if is_new and rank % 2:
            chunks[::2] = torch.empty(num_bytes, dtype=torch.uint8).split(CHUNK)[::2]
        for chunk in chunks:
            if rank % 2:
                dist.recv(chunk, rank - 1)
            else:
                dist.send(chunk, rank + 1)
        times.append(time.perf_counter() - start)
    if rank % 2:
        results.put(times)
    dist.barrier()
    dist.destroy_process_group()


def state_bytes(size: str) -> int:
    """Parameters and their momentum."""
    from rescale_job import build

    return 2 * sum(parameter.nbytes for parameter in build(size)[0].parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each side and size")
    parser.add_argument("--cycles", type=int, default=3, help="in each run of EasyScale; torchrun does one")
    parser.add_argument("--sizes", nargs="+", default=["small", "large"], choices=["small", "large"])
    parser.add_argument("--without-torchrun", action="store_true")
    parser.add_argument("--quick", action="store_true", help="the small model, one run of each side, one cycle")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.cycles, options.sizes = 1, 1, ["small"]
    for size in options.sizes:
        results = measure(size, options.rounds, options.cycles, has_torchrun=not options.without_torchrun)
        num_bytes = state_bytes(size)
        copies = [copy(num_bytes, pairs, 5, is_new=is_new) for pairs in (1, 2) for is_new in (False, True)]
        load = [round(number, 1) for number in os.getloadavg()]
        report("rescale", size=size, state_mb=round(num_bytes / 1e6, 1), load=load, copies=copies, **results)


if __name__ == "__main__":
    main()
