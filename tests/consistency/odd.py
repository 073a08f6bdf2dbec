"""Scripts that do what is seldom done, each of which once gave other bits on other placements. Two-loop form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import easyscale
from consistency.recipes import SEED

Options = Mapping[str, Any]


def _train(
    make: Callable[[], nn.Module], epochs: int, after_backward: Callable[[nn.Module], object] = lambda _: None
) -> None:
    session = easyscale.session(seed=SEED)
    model = make()
    model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for step in session.steps(3 * epochs):
        for _ in step:
            loss = model(torch.randn(4, 6)).square().mean()
            loss.backward()
            after_backward(model)
            session.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()


def _large() -> nn.Module:
    """More than DDP's first bucket, so that buckets are on their way before the last backward ends."""
    return nn.Sequential(nn.Linear(6, 600), nn.Tanh(), nn.Linear(600, 600), nn.Tanh(), nn.Linear(600, 2))


def clipped_in_the_inner_body(epochs: int, options: Options) -> None:
    """Each EST's own gradient is clipped, after its bucket may have been sent."""
    _train(_large, epochs, lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.01))


def hooked(epochs: int, options: Options) -> None:
    """Hooks of the script's own, registered in mid-training, change gradients after ours have seen them."""

    def halve(param: Tensor) -> None:
        param.grad.mul_(0.5)

    session = easyscale.session(seed=SEED)
    model = _large()
    model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for step in session.steps(3 * epochs):
        for _ in step:
            model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if session.global_step == 1:
            for param in model.parameters():
                param.register_post_accumulate_grad_hook(halve)


class Codebook(nn.Module):
    """Writes its buffer through ``.data``, which no version counter sees (a VQ-VAE's codebook)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.mean.data.mul_(0.9).add_(0.1 * y.detach().mean(0))
        return y - self.mean


class Lazy(nn.Module):
    """Registers a buffer in its first forward, and fills one that was None."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("scale", None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.scale is None:
            self.scale = y.detach().std(0)
            self.register_buffer("offset", y.detach().mean(0))
        return (y - self.offset) / self.scale


def codebook(epochs: int, options: Options) -> None:
    _train(Codebook, epochs)


def lazy(epochs: int, options: Options) -> None:
    _train(Lazy, epochs)


def frozen_after_prepare(epochs: int, options: Options) -> None:
    """A layer is frozen from the start, another one in mid-training, and both are thawed."""
    session = easyscale.session(seed=SEED)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    model[0].requires_grad_(False)
    for step in session.steps(4 * epochs):
        if session.global_step == 2:
            model[2].requires_grad_(False)
        if session.global_step == 4:
            model.requires_grad_(True)
        for _ in step:
            F.mse_loss(model(torch.randn(4, 6)), torch.ones(4, 2)).backward()
        optimizer.step()
        optimizer.zero_grad()


SCRIPTS: dict[str, Callable[[int, Options], Any]] = {
    "clipped_in_the_inner_body": clipped_in_the_inner_body,
    "hooked": hooked,
    "codebook": codebook,
    "lazy": lazy,
    "frozen_after_prepare": frozen_after_prepare,
}
