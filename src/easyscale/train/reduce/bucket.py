"""One bucket in memory: flat buffers, and a view into them for each parameter. Runs in the worker."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from easyscale.train.reduce.staging import Grads


class Bucket:
    """Flat buffers for one bucket, one for each sum that this worker brings.

    Behind the gradients stands one element, the flag: it tells all workers that something irregular happened to one.

    Args:
        numbers: the parameters in it, by their number in the job.
        params: those parameters.
        num_buffers: sums that this worker brings.
        multiple: workers; the buffers' length is a multiple of it.
    """

    def __init__(self, numbers: Sequence[int], params: Sequence[Tensor], num_buffers: int, multiple: int) -> None:
        self.numbers = tuple(numbers)
        self.elements = sum(param.numel() for param in params)
        length = -(-(self.elements + 1) // multiple) * multiple
        self.buffers = [params[0].new_zeros(length) for _ in range(num_buffers)]
        self.views = [_views(buffer, params) for buffer in self.buffers]

    @property
    def flag(self) -> Tensor:
        return self.buffers[0][self.elements]

    def fill(self, which: int, own: Grads) -> None:
        """Copy gradients (one for each of ``numbers``) into a buffer; missing ones count as zeros."""
        views = self.views[which]
        present = [(view, grad) for view, grad in zip(views, own, strict=True) if grad is not None]
        if present:
            torch._foreach_copy_([view for view, _ in present], [grad for _, grad in present])
        for view, grad in zip(views, own, strict=True):
            if grad is None:
                view.zero_()

    def fill_scaled(self, which: int, own: Grads, scale: float) -> None:
        """Copy ``grad * scale``, which is what DDP puts into its buckets."""
        for view, grad in zip(self.views[which], own, strict=True):
            if grad is None:
                view.zero_()
            else:
                torch.mul(grad, scale, out=view)

    def add(self, which: int, own: Grads) -> None:
        """Add gradients to a buffer; missing ones count as zeros."""
        views = self.views[which]
        if all(grad is not None for grad in own):
            torch._foreach_add_(views, own)  # type: ignore[arg-type]
            return
        for view, grad in zip(views, own, strict=True):
            view.add_(0 if grad is None else grad)


def _views(buffer: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    views, offset = [], 0
    for param in params:
        part = buffer[offset : offset + param.numel()]
        dense = not param.is_contiguous() and _is_dense(param)
        views.append(part.as_strided(param.size(), param.stride()) if dense else part.view(param.size()))
        offset += param.numel()
    return views


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without gaps, in whatever order (channels last, transposed)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
