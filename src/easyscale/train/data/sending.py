"""What a data worker does to a mini-batch before it hands it over. Runs in data worker processes.

PyTorch's data workers hand mini-batches over in a thread of their own: what cannot be sent is dropped there, with a
traceback on the terminal, and the worker waits for it for ever. So whether it can be sent is tried out before.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch.utils.data import get_worker_info

from easyscale.core.errors import DataError

_PLAIN = (int, float, complex, str, bytes, bool, type(None))


class _Trial(pickle.Pickler):
    """Pickles everything but tensors, which go another way."""

    def persistent_id(self, obj: Any) -> Any:
        return 0 if isinstance(obj, torch.Tensor) else None


def sendable(batch: Any) -> Any:
    """``batch``, which can be sent.

    Raises:
        DataError: something in it cannot.
    """
    if get_worker_info() is None:
        return batch
    if not _share(batch):
        try:
            _Trial(io.BytesIO()).dump(batch)
        except Exception as error:
            raise DataError(
                f"a mini-batch of type {type(batch).__name__} cannot be sent by a data worker ({error}): let "
                "collate_fn return tensors, numbers, text and containers of them, or use num_workers=0"
            ) from error
    return batch


def _share(value: Any) -> bool:
    """Put tensors into shared memory, where an error can still be told; whether there is nothing else of note."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu" and value.layout == torch.strided and not value.is_shared():
            value.share_memory_()
        return True
    if isinstance(value, _PLAIN):
        return True
    if isinstance(value, list | tuple):
        # all of them, also after one that is of note
        return all([_share(item) for item in value]) and type(value) in (list, tuple)  # noqa: C419
    if isinstance(value, dict):
        return _share([*value, *value.values()]) and type(value) is dict
    return False
