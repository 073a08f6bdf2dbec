"""Two files of tensors, compared bit by bit. Imports torch: only for ``.safetensors`` files, and only when asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from easyscale.core.errors import RefusedError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """The first tensor that differs, and where.

    Attributes:
        index: of the first element that differs; None when the tensors cannot be laid over each other.
        values: both elements, in words that tell them apart.
        max_abs: the largest absolute difference in this tensor; None when there is no such number.
    """

    name: str
    reason: str
    index: tuple[int, ...] | None = None
    values: tuple[str, str] | None = None
    max_abs: float | None = None

    def __str__(self) -> str:
        if self.index is None or self.values is None:
            return f"tensor {self.name}: {self.reason}"
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        most = "" if self.max_abs is None else f" (largest difference in this tensor: {self.max_abs:.3g})"
        return f"tensor {self.name}{place}: {self.values[0]} and {self.values[1]}{most}"

    def to_json(self) -> dict[str, Any]:
        return {
            "tensor": self.name,
            "reason": self.reason,
            "index": None if self.index is None else list(self.index),
            "values": None if self.values is None else list(self.values),
            "max_abs_difference": self.max_abs,
        }


def first_difference(left: Path, right: Path, look_first_at: str | None = None) -> TensorDifference | None:
    """The first tensor, by name, that is not equal in every bit; ``look_first_at`` is looked at before the others."""
    ours, theirs = _load(left), _load(right)
    names = sorted(ours.keys() | theirs.keys(), key=lambda name: (name != look_first_at, name))
    return next(_differences(names, ours, theirs), None)


def count_tensors(path: Path) -> int:
    return len(_load(path))


def _load(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RefusedError(f"{path} cannot be read as safetensors ({error})") from error


def _differences(
    names: Iterable[str], ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]
) -> Iterator[TensorDifference]:
    for name in names:
        if name not in ours or name not in theirs:
            yield TensorDifference(name, f"only in the {'first' if name in ours else 'second'}")
            continue
        difference = _compare(name, ours[name], theirs[name])
        if difference is not None:
            yield difference


def _compare(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> TensorDifference | None:
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        kinds = [f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for tensor in (ours, theirs)]
        return TensorDifference(name, f"{kinds[0]} and {kinds[1]}")
    is_different = _bits(ours) != _bits(theirs)
    if not is_different.any():
        return None
    index = tuple(int(i) for i in is_different.nonzero()[0]) if ours.dim() else ()
    return TensorDifference(
        name, "values differ", index, _tell_apart(ours[index], theirs[index]), _largest(ours, theirs)
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: NaN equals itself there, and 0.0 does not equal -0.0."""
    import torch

    by_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(by_size[tensor.element_size()])


def _tell_apart(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[str, str]:
    texts = str(ours.item()), str(theirs.item())
    if texts[0] != texts[1]:
        return texts
    return f"{texts[0]} (bits {_bits(ours).item():#x})", f"{texts[1]} (bits {_bits(theirs).item():#x})"


def _largest(ours: torch.Tensor, theirs: torch.Tensor) -> float | None:
    import torch

    most = float((ours.to(torch.float64) - theirs.to(torch.float64)).abs().max())
    return most if most == most and most != float("inf") else None
