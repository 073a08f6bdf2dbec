"""Tensors to and from the formats of others: a plain ``state_dict``, and torch.distributed.checkpoint. In the worker.

Both are of torch's making. A ``state_dict`` is read with ``weights_only=True``, so that no code in it runs.
torch.distributed.checkpoint keeps its metadata as a pickle and reads it as one: import only what you trust.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from easyscale.core.errors import RefusedError
from easyscale.train.checkpoint.state import Checkpoint


def export_state_dict(checkpoint: Checkpoint, out: str | Path, prefix: str = "") -> list[str]:
    """Write tensors as ``torch.save(model.state_dict())`` does; the file appears whole.

    Args:
        prefix: only tensors whose name begins so, named without it ("module0.", say).

    Returns:
        The names written.

    Raises:
        RefusedError: no tensor has such a name, or the file cannot be written.
    """
    tensors = _selected(checkpoint, prefix)
    out = Path(out)
    partial = out.with_name(out.name + ".partial")
    try:
        torch.save(_detached(tensors), partial)
        partial.replace(out)
    except (OSError, RuntimeError) as error:  # torch's writer raises the latter
        partial.unlink(missing_ok=True)
        raise RefusedError(f"{out} cannot be written ({error}): give another place") from error
    return list(tensors)


def import_state_dict(path: str | Path, prefix: str = "") -> dict[str, Tensor]:
    """Read a ``state_dict`` that torch or safetensors wrote, and put ``prefix`` before each name.

    Raises:
        RefusedError: it is neither, or holds something else than tensors.
    """
    path = Path(path)
    try:
        loaded = _load(path)
    except OSError as error:
        raise RefusedError(f"{path} cannot be read ({error.strerror or error}): give another file") from error
    except (RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise RefusedError(
            f"{path} is no state_dict of tensors alone ({first_line}): save model.state_dict() by torch.save or "
            f"safetensors"
        ) from error
    if not isinstance(loaded, Mapping) or not loaded:
        raise RefusedError(f"{path} holds a {type(loaded).__name__} and not a state_dict: save model.state_dict()")
    for name, value in loaded.items():
        if not isinstance(value, Tensor) or not isinstance(name, str):
            raise RefusedError(
                f"{path} has a {type(value).__name__} under {name!r}, where a state_dict has tensors: save "
                f"model.state_dict() alone"
            )
    return {prefix + name: value for name, value in loaded.items()}


def export_dcp(checkpoint: Checkpoint, folder: str | Path, prefix: str = "") -> list[str]:
    """Write tensors as torch.distributed.checkpoint does, from this one process.

    Raises:
        RefusedError: no tensor has such a name, or the folder has something in it already.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    tensors = _selected(checkpoint, prefix)
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise RefusedError(f"{folder} is not empty: give a new folder for torch.distributed.checkpoint")
    with _alone():
        save(_detached(tensors), storage_writer=FileSystemWriter(folder), no_dist=True)
    return list(tensors)


def import_dcp(folder: str | Path, prefix: str = "") -> dict[str, Tensor]:
    """Read all tensors of a torch.distributed.checkpoint folder into this one process.

    Raises:
        RefusedError: it is none, or holds something else than tensors.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    folder = Path(folder)
    if not (folder / ".metadata").is_file():
        raise RefusedError(f"{folder} has no .metadata, so torch.distributed.checkpoint did not write it")
    reader = FileSystemReader(folder)
    tensors: dict[str, Any] = {}
    for name, entry in reader.read_metadata().state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise RefusedError(f"{folder} has something else than a tensor under {name!r}: export tensors alone")
        tensors[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    with _alone():
        load(tensors, storage_reader=reader, no_dist=True)
    return {prefix + name: value for name, value in tensors.items()}


@contextmanager
def _alone() -> Iterator[None]:
    """torch warns that there is one process only, which is what was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _load(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(str(error)) from error
    return torch.load(path, map_location="cpu", weights_only=True)


def _selected(checkpoint: Checkpoint, prefix: str) -> dict[str, Tensor]:
    tensors = checkpoint.state.tensors
    found = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    if not found:
        names = ", ".join(list(tensors)[:3]) or "none at all"
        raise RefusedError(
            f"{checkpoint.path} has no tensor whose name begins with {prefix!r}: its names are {names} ..."
        )
    return found


def _detached(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In memory of their own, tied ones still tied: torch writes all of the memory that a tensor looks into."""
    copy_by_storage: dict[tuple[int, int], Any] = {}
    copies = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        key = (storage.data_ptr(), storage.nbytes())
        if key not in copy_by_storage:
            copy_by_storage[key] = storage.clone()
        shape = (tensor.storage_offset(), tensor.shape, tensor.stride())
        copies[name] = torch.empty(0, dtype=tensor.dtype).set_(copy_by_storage[key], *shape)
    return copies
