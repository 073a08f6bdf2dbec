"""What benches of the pure parts share: timing and the one line of JSON, as common.py but without torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any


def milliseconds(call: Callable[[], Any], rounds: int) -> dict[str, float]:
    """Least and median time of ``call`` over ``rounds``: the least is what the code costs, the rest the machine."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return {"least_ms": round(min(times), 4), "median_ms": round(statistics.median(times), 4)}


def report(name: str, **results: Any) -> None:
    """Print the bench's one line."""
    versions = {
        "easyscale": importlib.metadata.version("easyscale-torch"),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
    }
    print(json.dumps({"bench": name, **results, "versions": versions}))
    sys.stdout.flush()
