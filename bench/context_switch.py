"""Eight ESTs on one worker against gradient accumulation of eight mini-batches in bare PyTorch.

Same model, same mini-batches, same optimizer; one global step against one accumulated step, taken in turns. Ratio 1.00
would mean that switching contexts costs nothing. Aim 1.00, not above 1.02. Each side's peak memory is measured in a
process of its own; live allocations may differ by the partial sums, three gradient copies for eight ESTs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import easyscale
from common import (
    Cnn,
    HeapWatch,
    Transformer,
    cnn_batch,
    interleave,
    keep_heap,
    loss_of,
    peak_mib,
    ratio,
    report,
    text_batch,
)

ESTS = 8
Loss = Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]
CASES = {"cnn": (Cnn, cnn_batch), "transformer": (Transformer, text_batch)}


def build(name: str) -> tuple[nn.Module, torch.optim.Optimizer, list[tuple[Tensor, Tensor]]]:
    torch.manual_seed(0)
    make_model, make_batch = CASES[name]
    model = make_model()
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), [make_batch() for _ in range(ESTS)]


def accumulation(name: str, loss_of: Loss = loss_of) -> Callable[[], float]:
    model, optimizer, batches = build(name)

    def step() -> float:
        start = time.perf_counter()
        for batch in batches:
            (loss_of(model, batch) / ESTS).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    return step


def elastic(name: str, session: easyscale.Session, loss_of: Loss = loss_of) -> Callable[[], float]:
    model, optimizer, batches = build(name)
    model, optimizer = session.prepare(model, optimizer)

    def run() -> Iterator[float]:
        start = time.perf_counter()
        for step in session.steps(1_000_000):
            for virtual_rank in step:
                loss_of(model, batches[virtual_rank]).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield time.perf_counter() - start
            start = time.perf_counter()

    steps = run()
    return lambda: next(steps)


def memory_of(name: str, side: str) -> dict[str, float]:
    """Peaks of one side in MiB, in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--memory", name, side]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {f"{side}_{what}": size for what, size in found.items()}


def only_memory(name: str, side: str) -> None:
    watch = HeapWatch()
    with easyscale.session(seed=0, num_ests=ESTS) as session:
        loss = watch.loss_of
        step = elastic(name, session, loss) if side == "elastic" else accumulation(name, loss)
        for _ in range(5):
            step()
        print(json.dumps({"live_mib": round(watch.peak_mib, 2), "resident_mib": round(peak_mib(), 1)}))


def measure(name: str, rounds: int) -> dict[str, float]:
    keep_heap()
    with easyscale.session(seed=0, num_ests=ESTS) as session:
        runs = {"accumulation": accumulation(name), "elastic": elastic(name, session)}
        interleave(runs, 5)
        times = interleave(runs, rounds)
    gradients = sum(p.numel() * p.element_size() for p in CASES[name][0]().parameters()) / 2**20
    return {
        "ratio": round(ratio(times, "elastic", "accumulation"), 4),
        "accumulation_ms": round(1e3 * statistics.median(times["accumulation"]), 2),
        "elastic_ms": round(1e3 * statistics.median(times["elastic"]), 2),
        **memory_of(name, "accumulation"),
        **memory_of(name, "elastic"),
        "gradient_copy_mib": round(gradients, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--memory", nargs=2, metavar=("MODEL", "SIDE"), help="print one side's peak memory in MiB")
    options = parser.parse_args()
    if options.memory:
        only_memory(*options.memory)
    else:
        report("context_switch", ests=ESTS, **{name: measure(name, options.rounds) for name in CASES})


if __name__ == "__main__":
    main()
