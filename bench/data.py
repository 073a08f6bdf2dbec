"""The elastic loader against ``torch.utils.data.DataLoader`` with as many data workers, and what it saves.

Throughput: whole epochs of a cheap dataset (tensors) and a costly one (augmented images, about 1 ms a sample), with one
EST and with four on one worker, in the loop that a script writes, with nothing in its body but what EasyScale does for
a turn; each side lives in a process of its own and all take turns. Aim: not below 0.98 of PyTorch's samples per second.
Processor time, data workers' included, stands beside it: other programs disturb it less.

Sharing: time to the first mini-batch of eight ESTs with one pool over eight pools (at most 0.33), memory and processes
with one and eight ESTs (within 10 %). Samplers: a resume in the middle of an epoch of ImageNet's size and of 100
million samples (under a second).
"""

from __future__ import annotations

import argparse
import gc
import itertools
import multiprocessing
import random
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import easyscale
from common import interleave, keep_heap, peak_mib, ratio, report
from easyscale import PermutationSampler

IMAGENET, HUGE = 1_281_167, 100_000_000


class Cheap(Dataset[Any]):
    """Tensors in memory: nothing but the loader's own work."""

    batch_size = 64

    def __init__(self, batches: int) -> None:
        self.images = torch.zeros(batches * self.batch_size, 3, 32, 32)
        self.labels = torch.zeros(len(self.images), dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]


class Costly(Dataset[Any]):
    """Images cropped, flipped and dimmed at random, with noise: draws from all three generators."""

    batch_size = 16
    size = 224

    def __init__(self, batches: int) -> None:
        self.image = np.zeros((3, 256, 256), dtype=np.uint8)
        self.length = batches * self.batch_size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        top, left = random.randrange(256 - self.size), random.randrange(256 - self.size)
        crop = self.image[:, top : top + self.size, left : left + self.size]
        if np.random.rand() < 0.5:
            crop = crop[:, :, ::-1]
        image = torch.from_numpy(crop.astype(np.float32) * np.float32(np.random.uniform(0.8, 1.2)))
        return (image - 127) / 64 + 0.05 * torch.randn(image.shape), index % 1000


class Numbers(Dataset[int]):
    """As many samples as one likes."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Side:
    """A process in which ``setup(*arguments)`` has made something to call again and again."""

    def __init__(self, setup: Callable[..., Iterator[Any]], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["data"])
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, setup, arguments))
        self._process.start()
        theirs.close()

    def __call__(self) -> Any:
        """The next result."""
        self._connection.send(None)
        return self._connection.recv()

    def close(self) -> None:
        self._connection.close()
        self._process.join()

    @classmethod
    def once(cls, setup: Callable[..., Iterator[Any]], *arguments: Any) -> Any:
        """The first result of a process of its own."""
        side = cls(setup, *arguments)
        try:
            return side()
        finally:
            side.close()


def _serve(connection: Connection, setup: Callable[..., Iterator[Any]], arguments: tuple[Any, ...]) -> None:
    multiprocessing.set_start_method("fork", force=True)  # data workers, on all sides
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(1)
    keep_heap()
    results = setup(*arguments)
    while True:
        try:
            connection.recv()
        except EOFError:
            results.close()  # type: ignore[attr-defined]
            return
        connection.send(next(results))


# -- throughput ----------------------------------------------------------------------------------------------------


class Watch:
    """Seconds by the clock, and of processor time of this process and its data workers, also those that ended."""

    def __init__(self) -> None:
        gc.collect()
        self._start = self._now()

    def read(self) -> tuple[float, float]:
        """Since it was made."""
        clock, processor = self._now()
        return clock - self._start[0], processor - self._start[1]

    @staticmethod
    def _now() -> tuple[float, float]:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        alive = [one.cpu_times() for one in psutil.Process().children()]
        others = ended.ru_utime + ended.ru_stime + sum(one.user + one.system for one in alive)
        return time.perf_counter(), time.process_time() + others


def plain(
    make: Callable[[int], Any], batches: int, epochs: int, options: dict[str, Any]
) -> Iterator[tuple[float, float]]:
    """``epochs`` epochs of PyTorch's own loader."""
    dataset = make(batches)
    loader = DataLoader(dataset, dataset.batch_size, shuffle=True, **options)
    while True:
        watch = Watch()
        for _ in range(epochs):
            for _batch in loader:
                pass
        yield watch.read()


def elastic(
    ests: int, make: Callable[[int], Any], batches: int, epochs: int, options: dict[str, Any]
) -> Iterator[tuple[float, float]]:
    """The same of the elastic loader: the same samples in mini-batches of the same size, dealt out to ``ests`` ESTs."""
    dataset = make(batches)
    with easyscale.session(seed=0, num_ests=ests) as session:
        loader = session.prepare(DataLoader(dataset, dataset.batch_size, shuffle=True, **options))
        while True:
            watch = Watch()
            for _ in session.epochs(epochs):
                for step in session.steps(loader):
                    for _batch in step:
                        pass
            yield watch.read()


def throughput(make: Any, batches: int, rounds: int, options: dict[str, Any]) -> dict[str, Any]:
    epochs = 2
    shape = (make, batches, epochs, options)
    sides = {"torch": Side(plain, *shape), "1_est": Side(elastic, 1, *shape), "4_ests": Side(elastic, 4, *shape)}
    try:
        interleave(sides, 1)
        pairs = interleave(sides, rounds)
    finally:
        for side in sides.values():
            side.close()
    clock = {name: [pair[0] for pair in found] for name, found in pairs.items()}
    processor = {name: [pair[1] for pair in found] for name, found in pairs.items()}
    samples = epochs * batches * make.batch_size
    return {
        **{f"{name}_ratio": round(1 / ratio(clock, name, "torch"), 3) for name in ("1_est", "4_ests")},
        **{f"{name}_processor_ratio": round(1 / ratio(processor, name, "torch"), 3) for name in ("1_est", "4_ests")},
        **{f"{name}_per_s": round(samples / statistics.median(took)) for name, took in clock.items()},
    }


POOLS = ((0, False), (1, False), (1, True), (2, False), (2, True))
"""Numbers of data workers, and whether they live on from epoch to epoch."""


def throughputs(rounds: int, scale: int, pools: tuple[tuple[int, bool], ...] = POOLS) -> dict[str, Any]:
    results = {}
    for name, make, batches in (("cheap", Cheap, 40 * scale), ("costly", Costly, 4 * scale)):
        for workers, is_lasting in pools:
            options = {"num_workers": workers, "persistent_workers": is_lasting}
            title = f"{name}, {workers} data workers" + (", persistent" if is_lasting else "")
            results[title] = throughput(make, batches, rounds, options)
    return results


# -- sharing -------------------------------------------------------------------------------------------------------


def first_of_pools(ests: int, workers: int) -> Iterator[tuple[float, float]]:
    """Seconds to the first mini-batch, and until each EST has had one, with a pool for each EST."""
    dataset = Costly(64)
    while True:
        samplers = [DistributedSampler(dataset, num_replicas=ests, rank=rank) for rank in range(ests)]
        loaders = [DataLoader(dataset, 16, sampler=sampler, num_workers=workers) for sampler in samplers]
        start = time.perf_counter()
        running = [iter(loader) for loader in loaders]
        next(running[0])
        first = time.perf_counter() - start
        for batches in running[1:]:
            next(batches)
        yield first, time.perf_counter() - start
        del running, batches


def first_of_shared(ests: int, workers: int) -> Iterator[tuple[float, float]]:
    """The same with one pool for all ESTs."""
    dataset = Costly(64)
    while True:
        with easyscale.session(seed=0, num_ests=ests) as session:
            loader = session.prepare(DataLoader(dataset, 16, shuffle=True, num_workers=workers))
            start = time.perf_counter()
            first = None
            for step in session.steps(loader):
                for _batch in step:
                    first = first or time.perf_counter() - start
                break
            assert first is not None
            yield first, time.perf_counter() - start


def first_batches(rounds: int, sizes: tuple[int, ...] = (2, 4)) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for workers in sizes:
        sides = {"pools": Side(first_of_pools, 8, workers), "shared": Side(first_of_shared, 8, workers)}
        try:
            interleave(sides, 1)
            pairs = interleave(sides, rounds)
        finally:
            for side in sides.values():
                side.close()
        for number, what in enumerate(("first mini-batch", "first of each EST")):
            times = {name: [pair[number] for pair in found] for name, found in pairs.items()}
            results[f"{what}, {workers} data workers"] = {
                "ratio": round(ratio(times, "shared", "pools"), 3),
                **{f"{name}_ms": round(1e3 * statistics.median(took), 1) for name, took in times.items()},
            }
    return results


def footprint(ests: int, workers: int) -> Iterator[dict[str, float]]:
    """Memory and processes of a worker in the middle of an epoch."""
    dataset = Cheap(160)
    with easyscale.session(seed=0, num_ests=ests) as session:
        loader = session.prepare(DataLoader(dataset, 64, shuffle=True, num_workers=workers))
        for step in session.steps(loader):
            for _batch in step:
                pass
            if (step.global_step + 1) * ests == 80:
                mine = psutil.Process()
                tree = [mine, *mine.children(recursive=True)]
                yield {"pss_mib": sum(one.memory_full_info().pss for one in tree) / 2**20, "processes": len(tree)}


def footprints(workers: int) -> dict[str, Any]:
    one, eight = (Side.once(footprint, ests, workers) for ests in (1, 8))
    return {
        "ratio": round(eight["pss_mib"] / one["pss_mib"], 3),
        **{f"{name}_mib": round(found["pss_mib"], 1) for name, found in (("1_est", one), ("8_ests", eight))},
        "processes": [one["processes"], eight["processes"]],
    }


# -- samplers ------------------------------------------------------------------------------------------------------


def sampler_of_torch(samples: int) -> Iterator[dict[str, float]]:
    """``DistributedSampler`` of one of eight ranks, brought to the middle of an epoch."""
    dataset, before = Numbers(samples), peak_mib()
    start = time.perf_counter()
    sampler = DistributedSampler(dataset, num_replicas=8, rank=0)
    next(itertools.islice(iter(sampler), len(sampler) // 2, None))
    yield {"resume_s": time.perf_counter() - start, "mib": peak_mib() - before}


def sampler_of_elastic(samples: int, *, without_array: bool) -> Iterator[dict[str, float]]:
    """A prepared loader of eight ESTs, from its position in the middle of an epoch to the first mini-batch."""
    dataset = Numbers(samples)
    with easyscale.session(seed=0, num_ests=8) as session:
        sampler = PermutationSampler(dataset) if without_array else None
        loader = session.prepare(DataLoader(dataset, 64, sampler=sampler, shuffle=None if without_array else True))
        middle = {**loader.state_dict(), "iterations": 1, "epoch": 0, "number": len(loader) // 2}
        before, start = peak_mib(), time.perf_counter()
        loader.load_state_dict(middle)
        for step in session.steps(loader):
            for _batch in step:
                break
            took = time.perf_counter() - start
            yield {"resume_s": took, "mib": peak_mib() - before}
            return


def samplers(sizes: tuple[int, ...]) -> dict[str, Any]:
    results = {}
    for samples in sizes:
        found = {
            "DistributedSampler": Side.once(sampler_of_torch, samples),
            "default": Side.once(_default_order, samples),
            "PermutationSampler": Side.once(_without_array, samples),
        }
        for name, result in found.items():
            results[f"{name}, {samples}"] = {what: round(number, 4) for what, number in result.items()}
    return results


def _default_order(samples: int) -> Iterator[dict[str, float]]:
    return sampler_of_elastic(samples, without_array=False)


def _without_array(samples: int) -> Iterator[dict[str, float]]:
    return sampler_of_elastic(samples, without_array=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="few rounds of short epochs: whether it runs, no figures")
    parser.add_argument("--only", choices=("throughput", "sharing", "samplers"), help="one part of it")
    options = parser.parse_args()
    rounds, scale = (1, 1) if options.quick else (options.rounds, 5)
    results: dict[str, Any] = {}
    if options.only in (None, "throughput"):
        results["throughput"] = throughputs(rounds, scale, POOLS[2:3] if options.quick else POOLS)
    if options.only in (None, "sharing"):
        results["first"] = first_batches(rounds, (2,) if options.quick else (2, 4))
        results["memory"] = footprints(2)
    if options.only in (None, "samplers"):
        results["samplers"] = samplers((IMAGENET,) if options.quick else (IMAGENET, HUGE))
    report("data", **results)


if __name__ == "__main__":
    main()
