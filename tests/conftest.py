"""Every test leaves the process as it found it; one that does not fails, with a list of what it left.

A training system that leaks a process, a flag or a random number gives wrong results somewhere else. The
checks together cost less than two milliseconds, so all of them run around each test. Torch is looked at only
where it is imported.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest

GRACE_S = 2.0
"""What was told to end may still be ending: only a leak waits this long."""

SET_BY_LIBRARIES = {
    "PYTEST_CURRENT_TEST",
    "TORCHINDUCTOR_CACHE_DIR",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
}
"""Environment variables that pytest, torch and scikit-learn write into their own process."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)

DRAWS = "draws_random_numbers"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{DRAWS}: the test itself draws from the process's random streams (builds a model, say); "
        f"they are put back after it instead of checked",
    )


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaks; its own fixtures have been torn down by then."""
    folder = Path.cwd()
    before = Surroundings.now(folder)
    streams = RandomStreams.now()
    yield
    leaks = before.changes_until(Surroundings.now(folder))
    if leaks:
        gc.collect()
        _let_end(before)
        leaks = before.changes_until(Surroundings.now(folder))
    if request.node.get_closest_marker(DRAWS):
        streams.put_back()
    else:
        leaks += streams.moved()
    if leaks:
        pytest.fail("the test left something behind:\n  " + "\n  ".join(leaks), pytrace=False)


@dataclass(frozen=True)
class Surroundings:
    """What a test could change for those that run after it. Each field maps a thing to what it is."""

    child_processes: dict[int, str]
    threads: dict[threading.Thread, str]
    sockets: dict[str, str]
    environment_variables: dict[str, str]
    signal_handlers: dict[signal.Signals, str]
    files_in_working_directory: dict[str, str]
    working_directory: dict[str, str]
    torch_settings: dict[str, str]

    @classmethod
    def now(cls, folder: Path) -> Surroundings:
        return cls(
            child_processes=dict.fromkeys(_descendants(), "running"),
            threads=dict.fromkeys(threading.enumerate(), ""),
            sockets=dict.fromkeys(_sockets(), ""),
            environment_variables={k: v for k, v in os.environ.items() if k not in SET_BY_LIBRARIES},
            signal_handlers={number: repr(signal.getsignal(number)) for number in SIGNALS},
            files_in_working_directory={e.name: "" for e in os.scandir(folder) if e.name[0] not in "._"},
            working_directory={"": str(Path.cwd())},
            torch_settings=_torch_settings(),
        )

    def changes_until(self, later: Surroundings) -> list[str]:
        """One line for each thing that came, went or changed.

        A thing that may end on its own may go, and the first test that imports torch brings its settings.
        """
        changes = []
        for field in fields(self):
            before, after = getattr(self, field.name), getattr(later, field.name)
            keys = before.keys() | after.keys()
            if field.name in ("child_processes", "threads", "sockets"):
                keys = after.keys()
            if field.name == "torch_settings":
                keys = before.keys()
            changed = sorted((key for key in keys if before.get(key) != after.get(key)), key=str)
            name = field.name.replace("_", " ")
            changes += [f"{name}: {_describe(key, before.get(key), after.get(key))}" for key in changed]
        return changes


@dataclass(frozen=True)
class RandomStreams:
    """Where the global random streams of the process stand; empty for a library that is not imported."""

    state_by_library: dict[str, Any]

    @classmethod
    def now(cls) -> RandomStreams:
        states: dict[str, Any] = {"random": random.getstate()}
        if numpy := sys.modules.get("numpy"):
            name, keys, *rest = numpy.random.get_state()
            states["numpy"] = (name, keys.tobytes(), *rest)
        if _torch() is not None:
            states["torch"] = _torch().get_rng_state().numpy().tobytes()
        return cls(states)

    def moved(self) -> list[str]:
        now = RandomStreams.now().state_by_library
        return [
            f"random numbers: the stream of {library} moved on (mark the test {DRAWS} if it draws itself)"
            for library, state in self.state_by_library.items()
            if now[library] != state
        ]

    def put_back(self) -> None:
        random.setstate(self.state_by_library["random"])
        if "numpy" in self.state_by_library:
            numpy = sys.modules["numpy"]
            name, keys, *rest = self.state_by_library["numpy"]
            numpy.random.set_state((name, numpy.frombuffer(keys, numpy.uint32), *rest))
        if "torch" in self.state_by_library:
            torch, state = _torch(), bytearray(self.state_by_library["torch"])
            torch.set_rng_state(torch.frombuffer(state, dtype=torch.uint8))


def _torch() -> Any:
    """Torch if it has been imported completely, else None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "get_rng_state") else None


def _torch_settings() -> dict[str, str]:
    torch = _torch()
    if torch is None:
        return {"process group": "False"}
    distributed = torch.distributed
    has_group = distributed.is_available() and distributed.is_initialized()
    settings = {
        "process group": has_group,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill uninitialized memory": torch.utils.deterministic.fill_uninitialized_memory,
        "cudnn deterministic": torch.backends.cudnn.deterministic,
        "cudnn benchmark": torch.backends.cudnn.benchmark,
        "matmul precision": torch.get_float32_matmul_precision(),
        "intra-op threads": torch.get_num_threads(),
        "default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
    }
    return {name: str(value) for name, value in settings.items()}


def _descendants() -> list[int]:
    """Live processes under this one, without the two helpers that multiprocessing keeps for good."""
    helpers = {
        getattr(forkserver._forkserver, "_forkserver_pid", None),
        getattr(resource_tracker._resource_tracker, "_pid", None),
    }
    return [pid for pid in _below(os.getpid()) if pid not in helpers]


def _below(pid: int) -> Iterator[int]:
    for child in _children(pid):
        if _is_alive(child):
            yield child
        yield from _below(child)


def _children(pid: int) -> list[int]:
    if not Path("/proc").is_dir():
        return [child.pid for child in psutil.Process(pid).children()]
    children: list[int] = []
    with suppress(ProcessLookupError, FileNotFoundError):  # it has ended meanwhile
        for task in list(Path(f"/proc/{pid}/task").iterdir()):
            children += map(int, (task / "children").read_text().split())
    return children


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _sockets() -> list[str]:
    if not Path("/proc/self/fd").is_dir():
        return []
    found = []
    for entry in os.scandir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor that lists the folder
            found.append(os.readlink(entry.path))  # noqa: PTH115 - three times as fast as pathlib
    return [target for target in found if target.startswith("socket:")]


def _let_end(before: Surroundings) -> None:
    """Wait for new children and threads to end, no longer than the grace."""
    new_children = [psutil.Process(pid) for pid in _descendants() if pid not in before.child_processes]
    psutil.wait_procs(new_children, timeout=GRACE_S)
    for thread in threading.enumerate():
        if thread not in before.threads:
            thread.join(GRACE_S)


def _describe(key: Any, before: str | None, after: str | None) -> str:
    if isinstance(key, int) and not isinstance(key, signal.Signals):
        return f"{key} {_command_of(key)}"
    label = f"{key!s} " if key != "" else ""
    if before is None:
        return f"{label}is new{f' ({after})' if after else ''}"
    return f"{label}is gone" if after is None else f"{label}was {before} and is {after}"


def _command_of(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())[:120]
    except psutil.NoSuchProcess:
        return "(ended meanwhile)"
