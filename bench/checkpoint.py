"""Checkpoints against safetensors alone, and what they cost a training that goes on meanwhile.

Saving and loading: 400 MB of float32 in 100 tensors, in turns with ``save_file`` and ``load_file`` of safetensors, to a
file that did not exist and is on disk afterwards (fsync) on both sides. Loading is measured until the values are in a
model's parameters, and in fresh tensors; reading a mapped file costs nothing before its values are used, so ``load``
alone is shown without a ratio. Aim: not above 1.5.

Training: blocks of 50 steps of the Transformer, 10 M parameters and AdamW, with one asynchronous checkpoint in each or
none, in turns. The mini-batch is small (2 x 64 tokens), so that steps are short and a checkpoint weighs more. Time by
the clock, and processor time of all threads, which neighbours on the machine disturb less. Aim: not above 1.03.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from common import Transformer, interleave, keep_heap, loss_of, ratio, report, text_batch
from easyscale.train.checkpoint.manifest import TENSORS_NAME
from easyscale.train.checkpoint.read import load
from easyscale.train.checkpoint.state import JobFacts, JobState
from easyscale.train.checkpoint.store import CheckpointStore
from easyscale.train.digest import state_of

FACTS = JobFacts(num_ests=1, seed=0)
STEPS = 50


def seconds(call: Callable[[], object]) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return run


def save_alone(tensors: dict[str, Tensor], path: Path) -> None:
    save_file(tensors, path)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def copy_into(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])


def measure_files(folder: Path, rounds: int) -> dict[str, float]:
    tensors = {f"weight{number}": torch.randn(1_000_000) for number in range(100)}
    parameters = {name: torch.zeros_like(value) for name, value in tensors.items()}
    store, alone = CheckpointStore(folder / "store", keep=1), folder / "alone.safetensors"
    state = JobState(FACTS, 1, tensors)

    def save() -> float:
        shutil.rmtree(folder / "store" / "step-00000001", ignore_errors=True)
        taken = seconds(lambda: store.save(state))()
        assert (folder / "store" / "step-00000001").exists()
        return taken

    def save_safetensors() -> float:
        alone.unlink(missing_ok=True)
        return seconds(lambda: save_alone(tensors, alone))()

    saves = {"ours": save, "alone": save_safetensors}
    interleave(saves, 2)
    results = _compare("save", interleave(saves, rounds))
    path = folder / "store" / "step-00000001"
    loads: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "load_into_model": (
            lambda: copy_into(parameters, load(path).state.tensors),
            lambda: copy_into(parameters, load_file(path / TENSORS_NAME)),
        ),
        "load_into_memory": (
            lambda: {name: value.clone() for name, value in load(path).state.tensors.items()},
            lambda: {name: value.clone() for name, value in load_file(path / TENSORS_NAME).items()},
        ),
    }
    for name, (ours, theirs) in loads.items():
        runs = {"ours": seconds(ours), "alone": seconds(theirs)}
        interleave(runs, 2)
        results.update(_compare(name, interleave(runs, rounds)))
    only = {"load": seconds(lambda: load(path)), "sha256": seconds(lambda: load(path, check_sha256=True))}
    results.update({f"{name}_ms": _median_ms(times) for name, times in interleave(only, rounds).items()})
    store.close()
    return results


def _compare(what: str, times: dict[str, list[float]]) -> dict[str, float]:
    return {
        f"{what}_ratio": round(ratio(times, "ours", "alone"), 3),
        f"{what}_ms": _median_ms(times["ours"]),
        f"{what}_alone_ms": _median_ms(times["alone"]),
    }


def _median_ms(times: list[float]) -> float:
    return round(1e3 * statistics.median(times), 1)


def measure_training(folder: Path, rounds: int) -> dict[str, float]:
    torch.manual_seed(0)
    model = Transformer(width=512, layers=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x, y = text_batch()
    batch = (x[:2], y[:2])
    store = CheckpointStore(folder / "training", keep=2)
    stalls, writes, sizes, skipped = [], [], [], 0
    processor: dict[str, list[float]] = {"with": [], "without": []}

    def step() -> None:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    def block(number_of_saves: int) -> None:
        nonlocal skipped
        for number in range(STEPS):
            step()
            if number_of_saves and number == 0:
                flat = state_of([model], [optimizer])
                tensors = {name: value for name, value in flat.items() if isinstance(value, Tensor)}
                meta = {name: value for name, value in flat.items() if not isinstance(value, Tensor)}
                skipped += not store.save_async(JobState(FACTS, number, tensors, meta))

    def without_checkpoint() -> float:
        start = time.process_time()
        taken = seconds(lambda: block(0))()
        processor["without"].append(time.process_time() - start)
        return taken

    def with_checkpoint() -> float:
        start = time.process_time()
        taken = seconds(lambda: block(1))()
        processor["with"].append(time.process_time() - start)
        for result in store.wait():
            assert result.is_saved, result.reason
            stalls.append(result.stalled_s)
            writes.append(result.written_s)
            sizes.append(result.num_bytes)
        return taken

    runs = {"with": with_checkpoint, "without": without_checkpoint}
    interleave(runs, 1)
    first_stall_ms = 1e3 * stalls.pop(0)
    times = interleave(runs, rounds)
    store.close()
    assert not skipped
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "state_mb": round(max(sizes) / 1e6, 1),
        "ratio": round(ratio(times, "with", "without"), 4),
        "processor_ratio": round(ratio(processor, "with", "without"), 4),
        "step_ms": round(_median_ms(times["without"]) / STEPS, 2),
        "stall_ms": _median_ms(stalls),
        "first_stall_ms": round(first_stall_ms, 1),
        "written_ms": _median_ms(writes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="of saving and loading")
    parser.add_argument("--blocks", type=int, default=12, help="of 50 steps, with and without a checkpoint")
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary one")
    options = parser.parse_args()
    keep_heap()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        files = measure_files(Path(name), options.rounds)
        training = measure_training(Path(name), options.blocks)
    report("checkpoint", files=files, training=training)


if __name__ == "__main__":
    main()
