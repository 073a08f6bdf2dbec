"""What is trained: tiny models and data sets, in plain torch. Nothing here knows of EasyScale or of DDP.

Runs in the members of the fleet. Both ``cases`` (EasyScale) and ``oracle`` (plain DDP) train these.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

SEED = 11
LossFn = Callable[[nn.Module, Any, int, int], Tensor]
"""``loss(model, batch, virtual_rank, global_step)``"""


@dataclass(frozen=True)
class Data:
    """A data set and how it is loaded."""

    dataset: Callable[[], Dataset[Any]]
    batch_size: int = 3
    shuffle: bool = True
    drop_last: bool = False
    num_workers: int = 0
    generator_seed: int | None = None
    persistent_workers: bool = False


@dataclass(frozen=True)
class Recipe:
    """One thing to train.

    Attributes:
        options: options of DistributedDataParallel that a user of DDP must give for this model.
        max_norm: gradients are clipped to it before the optimizer steps.
        zero_every: ``zero_grad`` is called after every so many steps only.
        set_to_none: how ``zero_grad`` empties; where it fills with zeros an unused parameter is updated all the same.
    """

    model: Callable[[], nn.Module]
    data: Data
    loss: LossFn
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    lr_scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    max_norm: float | None = None
    zero_every: int = 1
    set_to_none: bool = True


class Images(Dataset[Any]):
    """Random 8x8 images; with ``augment`` every access draws from all three generators."""

    def __init__(self, length: int = 43, *, augment: bool = False) -> None:
        generator = torch.Generator().manual_seed(5)
        self._pixels = torch.randn(length, 1, 8, 8, generator=generator)
        self._labels = torch.randint(0, 10, (length,), generator=generator)
        self._augment = augment

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self._pixels[index]
        if self._augment:
            image = image * random.uniform(0.5, 1.5) + float(np.random.standard_normal()) + torch.randn(1, 8, 8)
        return image, self._labels[index]


class Text(Dataset[Any]):
    """Windows of a random text over 17 letters."""

    def __init__(self, length: int = 37) -> None:
        self._text = torch.randint(0, 17, (length + 8,), generator=torch.Generator().manual_seed(6))

    def __len__(self) -> int:
        return len(self._text) - 8

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._text[index : index + 8], self._text[index + 1 : index + 9]


class Points(Dataset[Any]):
    """Random vectors with a target."""

    def __init__(self, length: int = 41, width: int = 6, target: int = 2) -> None:
        generator = torch.Generator().manual_seed(7)
        self._x = torch.randn(length, width, generator=generator)
        self._y = torch.randn(length, target, generator=generator)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._x[index], self._y[index]


def cnn() -> nn.Module:
    """BatchNorm (buffers) and dropout (random numbers)."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def cnn_channels_last() -> nn.Module:
    """Parameters whose elements lie in another order in memory."""
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(64, 10)).to(
        memory_format=torch.channels_last  # type: ignore[call-overload]
    )


class Replacing(nn.Module):
    """Buffers that are not changed in place but replaced by new tensors, one of them growing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("history", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.calls = self.calls + 1
        self.history = torch.cat([self.history, x.detach().mean().reshape(1)])
        return self.layer(x - self.mean) + self.history.mean() / self.calls


class Transformer(nn.Module):
    """A language model with dropout; the output layer is the embedding's own weight."""

    def __init__(self, letters: int = 17, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, width)
        self.position = nn.Parameter(torch.randn(8, width) * 0.1)
        self.block = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.1, batch_first=True)
        self.output = nn.Linear(width, letters, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("mask", torch.triu(torch.full((8, 8), -math.inf), diagonal=1))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens) + self.position
        return self.output(self.block(hidden, src_mask=self.mask))


class Patchy(nn.Module):
    """Parameters that are frozen, tied, never used, or used by some virtual ranks in some steps.

    Args:
        all_until: in the steps before, every rank uses every parameter.
    """

    def __init__(self, all_until: int = 0) -> None:
        super().__init__()
        self._all_until = all_until
        self.first = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(6, 6)
        self.frozen.requires_grad_(False)
        self.never = nn.Linear(6, 6)
        self.odd_ranks = nn.Linear(6, 6)
        self.even_steps = nn.Linear(6, 6)
        self.rank_and_step = nn.Linear(6, 6)
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor, rank: int, step: int) -> Tensor:
        x = self.tied(torch.tanh(self.frozen(self.first(x))))
        uses_all = step < self._all_until
        if uses_all:
            x = x + self.never(x)
        if uses_all or rank % 2 == 1:
            x = x + self.odd_ranks(x)
        if uses_all or step % 2 == 0:
            x = x + self.even_steps(x)
        if uses_all or (rank + step) % 3 == 0:
            x = x + self.rank_and_step(x)
        return self.last(x)


class Idle(nn.Module):
    """One layer is never used, by no rank and in no step."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 9)
        self.never = nn.Linear(9, 9)
        self.last = nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class MixedDtypes(nn.Module):
    """Parameters of four dtypes, in turns."""

    def __init__(self) -> None:
        super().__init__()
        self.float32_in = nn.Linear(6, 8)
        self.float64_in = nn.Linear(8, 8, dtype=torch.float64)
        self.bfloat16_in = nn.Linear(8, 8, dtype=torch.bfloat16)
        self.float64_out = nn.Linear(8, 3, dtype=torch.float64)
        self.float16_in = nn.Linear(3, 3, dtype=torch.float16)
        self.float32_out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.float64_in(self.float32_in(x).double()))
        x = torch.tanh(self.bfloat16_in(x.bfloat16()))
        x = self.float16_in(self.float64_out(x.double()).half())
        return self.float32_out(x.float())


class Wide(nn.Module):
    """A weight of ``rows * 256`` floats between small ones; 5 MiB with the default, which is a bucket above 4 MiB."""

    def __init__(self, rows: int = 5120) -> None:
        super().__init__()
        self.before = nn.Linear(6, 256)
        self.wide = nn.Linear(256, rows)
        self.after = nn.Linear(rows, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(torch.relu(self.wide(torch.relu(self.before(x)))))


def scalars() -> nn.Module:
    """Parameters with fewer elements than there are virtual ranks, down to one."""
    return nn.Sequential(nn.Linear(6, 1), nn.PReLU(), nn.Linear(1, 2), nn.Linear(2, 1), nn.Tanh(), nn.Linear(1, 2))


def generator() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))


def discriminator() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(8, 1))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def slow_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)


def decay(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def warm_up_then_cosine(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: (step + 1) / 4 if step < 4 else 0.5 * (1 + math.cos(math.pi * min(1.0, (step - 4) / 20))),
    )


def classify(model: nn.Module, batch: Any, rank: int, step: int) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def predict_next(model: nn.Module, batch: Any, rank: int, step: int) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def fit(model: nn.Module, batch: Any, rank: int, step: int) -> Tensor:
    x, y = batch
    return F.mse_loss(model(x), y)


def fit_with_noise(model: nn.Module, batch: Any, rank: int, step: int) -> Tensor:
    """Draws from all three generators in the training loop's own body."""
    x, y = batch
    noise = torch.randn(x.shape) * random.random() + float(np.random.random())
    return F.mse_loss(model(x + noise), y)


def fit_patchy(model: nn.Module, batch: Any, rank: int, step: int) -> Tensor:
    x, y = batch
    return F.mse_loss(model(x, rank, step), y)


_CNN = Recipe(cnn, Data(Images), classify, sgd, decay)
_POINTS = Recipe(scalars, Data(Points), fit, adam)
_PATCHY = Recipe(Patchy, Data(Points), fit_patchy, adam, options={"find_unused_parameters": True})

RECIPES: dict[str, Recipe] = {
    "cnn": _CNN,
    "cnn_drop_last": replace(_CNN, data=Data(Images, drop_last=True)),
    "cnn_in_order": replace(_CNN, data=Data(Images, shuffle=False)),
    "cnn_own_buffers": replace(_CNN, options={"broadcast_buffers": False}),
    "augmented": replace(_CNN, data=Data(lambda: Images(25, augment=True))),
    "augmented_by_persistent_workers": replace(
        _CNN, data=Data(lambda: Images(25, augment=True), num_workers=2, persistent_workers=True)
    ),
    "augmented_by_workers": replace(_CNN, data=Data(lambda: Images(25, augment=True), num_workers=2)),
    "transformer": Recipe(Transformer, Data(Text), predict_next, adamw, warm_up_then_cosine, max_norm=0.5),
    "cnn_channels_last": replace(_CNN, model=cnn_channels_last),
    "cnn_generator": replace(_CNN, data=Data(Images, shuffle=False, generator_seed=3)),
    "patchy": _PATCHY,
    "patchy_never_zeroed": replace(_PATCHY, zero_every=3),
    "patchy_zeros": replace(_PATCHY, set_to_none=False),
    "patchy_late": replace(_PATCHY, model=lambda: Patchy(all_until=2)),
    "idle": Recipe(Idle, Data(Points), fit, adam, options={"find_unused_parameters": True}),
    "few_samples": replace(_POINTS, data=Data(lambda: Points(length=3))),
    "replacing": Recipe(Replacing, Data(Points), fit, sgd),
    "mixed_dtypes": Recipe(MixedDtypes, Data(Points), fit, sgd),
    "scalars": _POINTS,
    "noise_in_body": replace(_POINTS, loss=fit_with_noise),
    "never_zeroed": replace(_POINTS, zero_every=3),
    "wide": Recipe(Wide, Data(Points, batch_size=2), fit, slow_sgd),
}
