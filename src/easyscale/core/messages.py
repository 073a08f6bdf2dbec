"""What the launcher and a worker say to each other: typed, versioned JSON, never pickled.

One message is one JSON object in one frame of a ``multiprocessing.Connection`` (``send_bytes``/``recv_bytes``).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from easyscale.core.errors import EasyScaleError
from easyscale.core.job import ScriptSpec, WatchSpec

VERSION = 1


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Launcher -> worker, before anything else: who this process is and what it runs.

    Attributes:
        placement: as ``Placement`` writes it; None leaves it to the script's ``num_ests``.
        store_path: file of the rendezvous store, in a folder that ends with the run.
        overrides: fields of ``JobSpec`` that the user gave to the launcher.
        log_dir: folder of the logs by worker and by virtual rank.
        working_dir: where the script runs.
        search_path: ``sys.path`` without the entry that a script gets for its own folder.
    """

    worker_rank: int
    num_workers: int
    placement: str | None
    store_path: str
    script: ScriptSpec
    overrides: dict[str, Any]
    is_num_ests_explicit: bool
    watch: WatchSpec
    log_dir: str
    working_dir: str
    search_path: list[str]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerConfig:
        body = json.loads(text)
        script = body.pop("script")
        return cls(
            script=ScriptSpec(script["path"], tuple(script["args"])),
            watch=WatchSpec(**body.pop("watch")),
            **body,
        )


@dataclass(frozen=True, slots=True)
class Hello:
    """Worker -> launcher, once: the process is up and about to run the script."""

    worker_rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class Opened:
    """Worker -> launcher, once, when the first EST's turn begins: how many ESTs the session turned out to have."""

    worker_rank: int
    num_ests: int


@dataclass(frozen=True, slots=True)
class StepReport:
    """Worker -> launcher, one for each global step that the worker finished.

    ``scalars`` holds what ``session.log`` filed: virtual rank (as a string) -> name -> value.
    ``digest`` and ``tensors`` (name -> hash) are given by the worker of virtual rank 0 alone, and only when watched.
    """

    worker_rank: int
    global_step: int
    epoch: int
    total_steps: int | None
    seconds: float
    scalars: dict[str, dict[str, float]] = field(default_factory=dict)
    digest: str | None = None
    tensors: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """Worker -> launcher: text that the script printed. ``virtual_rank`` is None outside every EST's turn."""

    worker_rank: int
    virtual_rank: int | None
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Worker -> launcher, at most once: the script ended with an exception or a non-zero exit.

    ``kind`` is "refused" (exit code 2, message alone), "usage" (message and the user's line), "error" (traceback),
    "exit" (``sys.exit`` of the script) or "terminated" (SIGTERM from outside). ``is_secondary`` says that it looks
    like the consequence of another worker's end, so that it never hides the first cause.
    """

    worker_rank: int
    kind: str
    message: str
    traceback: str = ""
    virtual_rank: int | None = None
    global_step: int | None = None
    exit_code: int = 1
    is_secondary: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """Worker -> launcher, at most once: the script ended well. ``digest`` comes from the main worker alone."""

    worker_rank: int
    global_steps: int
    num_ests: int
    digest: str | None = None
    bytes_sent: int = 0


Message = Hello | Opened | StepReport | Output | Failed | Finished
_TYPE_BY_NAME: dict[str, type[Any]] = {t.__name__: t for t in (Hello, Opened, StepReport, Output, Failed, Finished)}


def encode(message: Message) -> bytes:
    body = {"v": VERSION, "type": type(message).__name__, **dataclasses.asdict(message)}
    return json.dumps(body, separators=(",", ":")).encode()


def decode(frame: bytes) -> Message:
    """Read one frame.

    Raises:
        EasyScaleError: the frame is not a message of this version.
    """
    try:
        body = json.loads(frame)
        version = body.pop("v")
        if version != VERSION:
            raise EasyScaleError(f"message of version {version} received, this is version {VERSION}: use one release")
        message: Message = _TYPE_BY_NAME[body.pop("type")](**body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EasyScaleError(f"not a message: {frame[:80]!r} ({error})") from error
    return message
