"""EasyScale scripts that only load: what an EST was given in a step is logged as a hash of its values.

Runs in the members of a fleet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import easyscale
from consistency.loaders import SEED, bits, drawn, loader_of

Options = Mapping[str, Any]


def load(epochs: int, options: Options) -> None:
    """The two-loop form.

    Options are those of ``loader_of`` and ``accumulate``; ``stop`` leaves after so many steps with the position
    written to ``folder``, ``resume`` goes on from there.
    """
    session = easyscale.session(seed=SEED)
    loader = session.prepare(_loader(options))
    if options.get("resume"):
        _resume(loader, Path(options["folder"]))
    done = 0
    for _ in session.epochs(epochs):
        for step in session.steps(loader, accumulate=options.get("accumulate", 1)):
            count: Counter[int] = Counter()
            for batch in step:
                _note(session, batch, f"batch{count[session.virtual_rank]}")
                count[session.virtual_rank] += 1
            done += 1
            if done == options.get("stop"):
                _save(session, loader, Path(options["folder"]))
                return


def load_flat(epochs: int, options: Options) -> None:
    """The drop-in form."""
    session = easyscale.session(seed=SEED)
    model = torch.nn.Linear(1, 1)  # in training mode, so that this is no evaluation
    _, loader = session.prepare(model, _loader(options))
    for _ in session.epochs(epochs):
        for batch in loader:
            _note(session, batch, "batch0")


def evaluate(epochs: int, options: Options) -> list[Any]:
    """Training on one loader with an evaluation of another or of itself after every step, if ``evaluates`` says so.

    Returns:
        Counts of samples and sums over them, by evaluation.
    """
    session = easyscale.session(seed=SEED)
    own = {name: value for name, value in options.items() if name not in ("evaluates", "held_out")}
    loader, held_out = session.prepare(loader_of(**own), loader_of(options.get("held_out", "in_order")))
    found = []
    for _ in session.epochs(epochs):
        for step in session.steps(loader):
            for batch in step:
                _note(session, batch, "batch0")
            if options["evaluates"]:
                found.append(_evaluated(session, loader if options["evaluates"] == "itself" else held_out))
    return found


def _evaluated(session: Any, loader: Any) -> list[Any]:
    times = torch.zeros(1000, dtype=torch.int64)
    sum_by_rank: dict[int, float] = {}
    for batch in loader:
        seen = batch["samples"][:, 0]
        times += torch.bincount(seen.long(), minlength=1000)
        rank = session.virtual_rank
        sum_by_rank[rank] = sum_by_rank.get(rank, 0.0) + float(batch["samples"].sum() + batch["batch"].sum())
    return [session.sum(times).tolist(), session.sum(sum_by_rank)]


def _loader(options: Options) -> Any:
    own = {n: v for n, v in options.items() if n not in ("accumulate", "stop", "resume", "folder")}
    return loader_of(**own)


def _note(session: Any, batch: Any, name: str) -> None:
    session.log(**{name: bits(batch), f"{name}_body": sum(drawn())})


def _save(session: Any, loader: Any, folder: Path) -> None:
    torch.save(loader.state_dict(), folder / f"{min(session._turns.ranks)}.pt")


def _resume(loader: Any, folder: Path) -> None:
    """Put together what all workers saved, as a checkpoint does, and go on there."""
    positions = [torch.load(path, weights_only=False) for path in sorted(folder.glob("*.pt"))]
    for position in positions[1:]:
        positions[0]["stream"].get("ranks", {}).update(position["stream"].get("ranks", {}))
    loader.load_state_dict(positions[0])


SCRIPTS: dict[str, Callable[[int, Options], Any]] = {"load": load, "evaluate": evaluate}
FLAT: dict[str, Callable[[int, Options], Any]] = {"load": load_flat}


def placed(num_workers: int) -> str:
    """A placement of four ESTs on so many workers, neither even nor in order where it can be."""
    return {1: "3,0,2,1", 2: "2|0,3,1", 3: "0|3,1|2", 4: "0|1|2|3"}[num_workers]


def every(kinds: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Every kind with a few pairs of workers and data workers."""
    for kind in kinds:
        yield from ((kind, *pair) for pair in ((1, 3), (2, 1), (3, 0), (4, 1)))
