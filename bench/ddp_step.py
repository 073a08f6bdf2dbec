"""A global step with one EST on each worker against a step of PyTorch's DistributedDataParallel on as many processes.

Same processes, same model of 10 million parameters, same mini-batches, same optimizer, taken in turns; the slowest
process of a step counts. Ratio 1.00 would mean that the fixed order of the reduction costs nothing. Aim 1.00, not above
1.02, for 2 workers; 4 beside it. Each side's peak memory is measured in processes of its own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

import easyscale
from common import HeapWatch, Transformer, interleave, keep_heap, loss_of, peak_mib, ratio, report
from easyscale.core.placement import Placement
from easyscale.train import runtime

WIDTH, LAYERS = 384, 5


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = Transformer(vocabulary=2048, width=WIDTH, layers=LAYERS)
    batch = (torch.randint(0, 2048, (4, 64)), torch.randint(0, 2048, (4, 64)))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), batch


def ddp(loss_of: Any = loss_of) -> Callable[[], float]:
    model, optimizer, batch = build()
    wrapped = DistributedDataParallel(model)

    def step() -> float:
        dist.barrier()
        start = time.perf_counter()
        loss_of(wrapped, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    return step


def elastic(session: easyscale.Session, loss_of: Any = loss_of) -> Callable[[], float]:
    model, optimizer, batch = build()
    model, optimizer = session.prepare(model, optimizer)

    def run() -> Iterator[float]:
        steps = session.steps(1_000_000)
        while True:
            dist.barrier()
            start = time.perf_counter()
            for _ in next(steps):
                loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield time.perf_counter() - start

    results = run()
    return lambda: next(results)


def process(rank: int, size: int, folder: str, sides: list[str], rounds: int, results: Any) -> None:
    if len(sides) > 1:  # for times; memory is measured as it is without
        keep_heap()
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/ddp", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(minutes=5))
    context = runtime.WorkerContext(rank, size, Placement.even(size, size), f"{folder}/elastic")
    runtime.install(context)
    with easyscale.session(seed=0) as session:
        watch = HeapWatch()
        loss = loss_of if len(sides) > 1 else watch.loss_of
        makers = {"ddp": lambda: ddp(loss), "elastic": lambda: elastic(session, loss)}
        runs = {side: makers[side]() for side in sides}
        interleave(runs, 3)
        times = interleave(runs, rounds)
        results.put((times, (watch.peak_mib, peak_mib()), session.bytes_sent / (session.global_step + 1)))
        dist.barrier()
    dist.destroy_process_group()


def run(size: int, sides: list[str], rounds: int) -> list[Any]:
    """What every process found."""
    method = multiprocessing.get_context("spawn")
    results = method.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            method.Process(target=process, args=(rank, size, folder, sides, rounds, results)) for rank in range(size)
        ]
        for worker in workers:
            worker.start()
        found = [results.get() for _ in workers]
        for worker in workers:
            worker.join()
    return found


def memory_of(size: int, side: str) -> dict[str, float]:
    """Peaks of the largest process of one side, in MiB."""
    live, resident = zip(*(peaks for _, peaks, _ in run(size, [side], 3)), strict=True)
    return {f"{side}_live_mib": round(max(live), 2), f"{side}_resident_mib": round(max(resident), 1)}


def measure(size: int, rounds: int) -> dict[str, float]:
    found = run(size, ["ddp", "elastic"], rounds)
    slowest = {
        side: [max(step) for step in zip(*(times[side] for times, _, _ in found), strict=True)] for side in found[0][0]
    }
    parameters = sum(p.numel() for p in build()[0].parameters())
    ideal = 2 * 4 * parameters * (size - 1) / size
    return {
        "ratio": round(ratio(slowest, "elastic", "ddp"), 4),
        "ddp_ms": round(1e3 * statistics.median(slowest["ddp"]), 1),
        "elastic_ms": round(1e3 * statistics.median(slowest["elastic"]), 1),
        **memory_of(size, "ddp"),
        **memory_of(size, "elastic"),
        "bytes_over_ideal": round(max(sent for _, _, sent in found) / ideal, 5),
        "parameters": parameters,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    report("ddp_step", **{f"workers_{size}": measure(size, options.rounds) for size in (2, 4)})


if __name__ == "__main__":
    main()
