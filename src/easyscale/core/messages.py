"""What workers tell the launcher, and how both are written: typed, versioned JSON, never pickled.

One message is one JSON object in one frame of a ``multiprocessing.Connection`` (``send_bytes``/``recv_bytes``).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from easyscale.core.errors import EasyScaleError
from easyscale.core.job import CheckpointSpec, Fault, ScriptSpec, WatchSpec
from easyscale.core.orders import Form, Go, Order, Save, Stop

VERSION = 1


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Launcher -> worker, before anything else: who this process is and what it runs.

    Attributes:
        worker_rank: number of the worker in the run, never used again; for those that begin the run their rank.
        placement: as ``Placement`` writes it; None leaves it to the script's ``num_ests``.
        store_path: file of the rendezvous store, in a folder that ends with the run.
        overrides: fields of ``JobSpec`` that the user gave to the launcher.
        log_dir: folder of the logs by worker and by virtual rank.
        working_dir: where the script runs.
        search_path: ``sys.path`` without the entry that a script gets for its own folder.
        is_elastic: the job's workers may change while it runs.
        may_move: it may be asked to, not only be hit by a loss: what could not move is refused.
        is_joiner: the job runs already: get its state from the others.
        stops: global steps before which the launcher will order a change.
        faults: where this worker fails, for tests and rehearsals.
        speeds: from which global step on it pretends to be slower, and how much (``train/process/pace.py``).
        checkpoint: where and when to write checkpoints; None: never.
        grace_s: how long a worker whose launcher is gone may take to write one.
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
    is_elastic: bool = True
    may_move: bool = False
    is_joiner: bool = False
    stops: list[int] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    speeds: list[list[float]] = field(default_factory=list)
    checkpoint: CheckpointSpec | None = None
    grace_s: float = 30.0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerConfig:
        body = json.loads(text)
        script, checkpoint = body.pop("script"), body.pop("checkpoint")
        return cls(
            script=ScriptSpec(script["path"], tuple(script["args"])),
            watch=WatchSpec(**body.pop("watch")),
            faults=[Fault(**fault) for fault in body.pop("faults")],
            checkpoint=None if checkpoint is None else CheckpointSpec(**checkpoint),
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
    ``turns`` is how long each of the worker's ESTs worked: virtual rank (as a string) -> seconds, without waiting for
    other workers. ``cycle_s`` is the time since the end of the worker's step before, 0 if there was none.
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
    turns: dict[str, float] = field(default_factory=dict)
    cycle_s: float = 0.0


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


@dataclass(frozen=True, slots=True)
class Alive:
    """Worker -> launcher, several times a second: the process runs. Says nothing about the script."""

    worker_rank: int


@dataclass(frozen=True, slots=True)
class Logged:
    """Worker -> launcher: what ``session.log`` filed in a pass, said before any worker leaves the pass behind."""

    worker_rank: int
    global_step: int
    scalars: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker -> launcher, once: the script has come to its first loop; a joiner waits there to be let in."""

    worker_rank: int


@dataclass(frozen=True, slots=True)
class Formed:
    """Worker -> launcher: it has met the others of a generation. ``times`` are seconds since the epoch, by phase."""

    worker_rank: int
    generation: int
    global_step: int
    times: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moved:
    """Worker -> launcher: it goes on in the new generation, after a pause."""

    worker_rank: int
    generation: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Lost:
    """Worker -> launcher: it cannot reach the others of a generation any more, or (``is_refused``) will not."""

    worker_rank: int
    generation: int
    reason: str
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class Leaving:
    """Worker -> launcher: somebody asked this worker to end (SIGTERM); it goes on until the others do without it."""

    worker_rank: int


@dataclass(frozen=True, slots=True)
class Left:
    """Worker -> launcher, at most once: the worker has left the job, as it was ordered to."""

    worker_rank: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """Worker -> launcher, at most once: the job goes on from a checkpoint, of which ``notes`` should be known."""

    worker_rank: int
    global_step: int
    path: str
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Saved:
    """Worker -> launcher: what became of a checkpoint; ``path`` is None if there is none, and ``reason`` says why.

    ``stalled_s`` is how long training waited, ``is_ordered`` whether it is the one that the launcher waits for.
    """

    worker_rank: int
    global_step: int
    path: str | None
    reason: str | None
    stalled_s: float
    written_s: float
    num_bytes: int
    is_ordered: bool = False


Message = (
    Hello
    | Opened
    | StepReport
    | Output
    | Failed
    | Finished
    | Alive
    | Logged
    | Ready
    | Formed
    | Moved
    | Lost
    | Leaving
    | Left
    | Resumed
    | Saved
)
_TYPES: tuple[type[Any], ...] = (
    *(Hello, Opened, StepReport, Output, Failed, Finished, Alive, Logged, Ready, Formed, Moved, Lost, Leaving, Left),
    *(Resumed, Saved),
    *(Form, Go, Save, Stop),
)
_TYPE_BY_NAME = {kind.__name__: kind for kind in _TYPES}


def encode(message: Message | Order) -> bytes:
    body = {"v": VERSION, "type": type(message).__name__, **dataclasses.asdict(message)}
    return json.dumps(body, separators=(",", ":")).encode()


def decode(frame: bytes) -> Any:
    """Read one frame.

    Raises:
        EasyScaleError: the frame is not a message of this version.
    """
    try:
        body = json.loads(frame)
        version = body.pop("v")
        if version != VERSION:
            raise EasyScaleError(f"message of version {version} received, this is version {VERSION}: use one release")
        message = _TYPE_BY_NAME[body.pop("type")](**body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EasyScaleError(f"not a message: {frame[:80]!r} ({error})") from error
    return message
