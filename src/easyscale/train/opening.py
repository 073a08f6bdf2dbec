"""``easyscale.session``: finds out who this process is (see ``runtime``), opens the job. Runs in the worker process."""

from __future__ import annotations

from easyscale.core.errors import UsageError
from easyscale.core.job import Reduction, Rng
from easyscale.train import runtime
from easyscale.train.job import ProcessState, open_job
from easyscale.train.session import Session, current_session


def session(
    seed: int | None = None,
    num_ests: int | None = None,
    rng: Rng | None = None,
    reduction: Reduction | None = None,
    determinism: str | None = None,
    *,
    threads: int | None = None,
    device: str | None = None,
) -> Session:
    """Open the job that this process works for; what the launcher was told wins over the arguments.

    Args:
        seed: root of every random number, default 0. The generators are seeded with it now.
        num_ests: number of ESTs, default the number of workers.
        rng: "stepwise" (default) or "ddp"; see ``JobSpec``.
        reduction: "tree" (default) or "ring".
        determinism: "D0" or "D1" (default).
        threads: intra-op threads, default 1; part of the job, since it changes bits.
        device: "cpu" or "cuda", default a GPU if there is one.

    Raises:
        RefusedError: the arguments do not fit the job that was started.
        UsageError: a session is open in this process.
    """
    if current_session() is not None:
        raise UsageError("a session is open in this process already: close it with session.close() first")
    before = ProcessState.current()
    context = runtime.current()
    asked = {
        "seed": seed,
        "num_ests": num_ests,
        "rng": rng,
        "reduction": reduction,
        "determinism": determinism,
        "threads": threads,
    }
    try:
        return Session(open_job(context, asked, device), before, context.observer)
    except BaseException:
        before.restore()
        raise
