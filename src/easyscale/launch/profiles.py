"""What earlier runs measured of a job's speed: reads ``profile.json`` in folders of runs. Runs in the launcher."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from easyscale.core import events
from easyscale.core.errors import EasyScaleError, RefusedError
from easyscale.core.events import StartEvent
from easyscale.launch.folder import PROFILE_NAME


@dataclass(frozen=True, slots=True)
class Profile:
    """What a run has measured.

    Attributes:
        folder: of the run.
        capability: mini-batches/s of one EST by kind.
        sync_s_by_devices: what a step takes beside its ESTs' work, by number of workers.
    """

    folder: Path
    capability: dict[str, float]
    sync_s_by_devices: tuple[tuple[int, float], ...]


def read_profile(folder: Path) -> Profile:
    """The profile in the folder of a run.

    Raises:
        RefusedError: there is none, or it cannot be understood.
    """
    path = folder / PROFILE_NAME
    try:
        body = json.loads(path.read_text())
        capability = {str(kind): float(speed) for kind, speed in body["capability"].items()}
        sync = tuple((int(devices), float(seconds)) for devices, seconds in body["sync_s_by_devices"])
    except FileNotFoundError:
        raise RefusedError(
            f"{folder} has no {PROFILE_NAME}: name the folder of a run that has trained with --plan auto for some "
            f"steps, or give a table such as V100=3.1,T4=1.0"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedError(f"{path} is no profile of this version ({error}): remove it, or give a table") from error
    return Profile(folder, capability, sync)


def start_of(folder: Path) -> StartEvent | None:
    """How the run in ``folder`` was started; None if its record does not say."""
    try:
        first = next(events.read(folder / events.FILE_NAME), None)
    except (OSError, EasyScaleError):
        return None
    return first if isinstance(first, StartEvent) else None


def newest_profile(run_dir: Path, script: str, args: tuple[str, ...], kinds: set[str]) -> Profile | None:
    """Of the newest run of this script with these arguments that has measured all of these kinds."""
    paths = sorted(run_dir.glob(f"*/{PROFILE_NAME}"), key=lambda path: (path.stat().st_mtime, path), reverse=True)
    for path in paths:
        start = start_of(path.parent)
        if start is None or (start.script, start.args) != (script, list(args)):
            continue
        try:
            profile = read_profile(path.parent)
        except RefusedError:
            continue
        if kinds <= profile.capability.keys():
            return profile
    return None
