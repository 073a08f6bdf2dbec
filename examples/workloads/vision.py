"""Image classifiers of the paper in plain torch.nn: ShuffleNetv2, ResNet50, VGG19, Swin; each tiny and in full."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv(before: int, after: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    """Convolution, BatchNorm and, if asked, ReLU."""
    layers: list[nn.Module] = [
        nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
    ]
    return nn.Sequential(*layers, nn.ReLU()) if act else nn.Sequential(*layers)


class ShuffleUnit(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        half = after // 2
        self.is_split = stride == 1
        first = half if self.is_split else before
        self.main = nn.Sequential(
            conv(first, half), conv(half, half, 3, stride, groups=half, act=False), conv(half, half)
        )
        shortcut = nn.Sequential(conv(before, before, 3, stride, groups=before, act=False), conv(before, half))
        self.shortcut = nn.Identity() if self.is_split else shortcut

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1) if self.is_split else (x, x)
        joined = torch.cat([self.shortcut(left), self.main(right)], 1)
        return joined.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)  # shuffles the channels of both halves


def shufflenet(size: str) -> nn.Module:
    """ShuffleNetv2 x1.0."""
    widths, repeats, last = ([24, 116, 232, 464], [4, 8, 4], 1024) if size == "full" else ([8, 16, 32], [2, 2], 64)
    stem = [conv(3, widths[0], 3, 2), nn.MaxPool2d(3, 2, 1)] if size == "full" else [conv(3, widths[0], 3)]
    units = []
    for before, after, count in zip(widths, widths[1:], repeats, strict=False):
        units += [ShuffleUnit(before, after, 2), *(ShuffleUnit(after, after, 1) for _ in range(count - 1))]
    return nn.Sequential(
        *stem, *units, conv(widths[-1], last), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes(size))
    )


class Bottleneck(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.main = nn.Sequential(conv(before, width), conv(width, width, 3, stride), conv(width, after, act=False))
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else conv(before, after, 1, stride, act=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.shortcut(x))


def resnet50(size: str) -> nn.Module:
    width, repeats = (64, [3, 4, 6, 3]) if size == "full" else (8, [1, 1, 1])
    stem = [conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)] if size == "full" else [conv(3, width, 3)]
    blocks, before = [], width
    for stage, count in enumerate(repeats):
        for number in range(count):
            blocks.append(Bottleneck(before, width << stage, 2 if stage and not number else 1))
            before = 4 * (width << stage)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes(size)))


def vgg19(size: str) -> nn.Module:
    """VGG19 without BatchNorm: five stages of convolutions, then three layers with dropout."""
    scale, hidden = (1, 4096) if size == "full" else (16, 64)
    layers: list[nn.Module] = []
    before = 3
    for width, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            layers += [nn.Conv2d(before, width // scale, 3, padding=1), nn.ReLU()]
            before = width // scale
        layers.append(nn.MaxPool2d(2))
    flat = before * (image_side(size) // 32) ** 2
    head = [nn.Linear(flat, hidden), nn.ReLU(), nn.Dropout(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(*layers, nn.Flatten(), *head, nn.Linear(hidden, classes(size)))


class DropPath(nn.Module):
    """Leaves a residual branch out for some samples."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.share == 0:
            return x
        kept = torch.rand(len(x), *[1] * (x.dim() - 1), device=x.device) >= self.share
        return x * kept / (1 - self.share)


class SwinBlock(nn.Module):
    """Attention within windows, moved by half a window in every other block, then a feed-forward layer."""

    def __init__(self, width: int, heads: int, side: int, window: int, is_shifted: bool, drop: float) -> None:
        super().__init__()
        self.heads, self.side, self.window = heads, side, min(window, side)
        self.shift = self.window // 2 if is_shifted and side > window else 0
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = DropPath(drop)
        self.bias = nn.Parameter(torch.zeros((2 * self.window - 1) ** 2, heads))
        self.register_buffer("index", self._index(), persistent=False)
        self.register_buffer("mask", self._mask(), persistent=False)

    def _index(self) -> Tensor:
        at = torch.cartesian_prod(torch.arange(self.window), torch.arange(self.window))
        row, column = (at[:, None] - at[None] + self.window - 1).unbind(-1)
        return row * (2 * self.window - 1) + column

    def _windows(self, x: Tensor) -> Tensor:
        """[batch, side, side, width] -> [batch, windows, positions, width]"""
        count = self.side // self.window
        x = x.unflatten(2, (count, self.window)).unflatten(1, (count, self.window))
        return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def _mask(self) -> Tensor:
        """Which positions of a window were neighbours before the shift; what the edge joined must not mix."""
        part = torch.zeros(self.side, dtype=torch.long)
        if self.shift:
            part[-self.window : -self.shift], part[-self.shift :] = 1, 2
        regions = (3 * part[:, None] + part[None])[None, :, :, None].expand(1, -1, -1, 1)
        regions = self._windows(regions)[0, :, :, 0]
        return torch.zeros(1).masked_fill(regions[:, None, :, None] != regions[:, None, None, :], -100.0)

    def attend(self, x: Tensor) -> Tensor:
        x = self._windows(x.roll((-self.shift, -self.shift), (1, 2)))
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)
        bias = self.bias[self.index].permute(2, 0, 1) + self.mask
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5 + bias
        x = self.out((scores.softmax(-1) @ v).transpose(2, 3).flatten(3))
        count = self.side // self.window
        x = x.unflatten(1, (count, count)).unflatten(3, (self.window, self.window))
        x = x.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return x.roll((self.shift, self.shift), (1, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attend(self.norm_1(x)))
        return x + self.drop(self.feed_forward(self.norm_2(x)))


class Merge(nn.Module):
    """Four neighbours become one position of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduce(self.norm(torch.cat(parts, -1)))


class Swin(nn.Module):
    """Swin-T in full: patches of 4, windows of 7."""

    def __init__(self, size: str) -> None:
        super().__init__()
        width, depths, window = (96, [2, 2, 6, 2], 7) if size == "full" else (24, [2, 2], 4)
        heads, side, number = width // 32 or 1, image_side(size) // 4, 0
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.norm = nn.LayerNorm(width)
        layers: list[nn.Module] = []
        for stage, depth in enumerate(depths):
            if stage:
                layers.append(Merge(width))
                width, heads, side = 2 * width, 2 * heads, side // 2
            for block in range(depth):
                drop = 0.2 * number / (sum(depths) - 1)
                layers.append(SwinBlock(width, heads, side, window, block % 2 == 1, drop))
                number += 1
        self.layers = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes(size)))

    def forward(self, images: Tensor) -> Tensor:
        x = self.layers(self.norm(self.patches(images).permute(0, 2, 3, 1)))
        norm, linear = self.head
        return linear(norm(x).mean((1, 2)))


def classes(size: str) -> int:
    return 1000 if size == "full" else 10


def image_side(size: str) -> int:
    return 224 if size == "full" else 32
