"""YOLOv3 in plain torch.nn: Darknet, three heads, and its loss of boxes, objectness and classes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ANCHORS = (
    torch.tensor([[10, 13], [16, 30], [33, 23], [30, 61], [62, 45], [59, 119], [116, 90], [156, 198], [373, 326]]) / 416
)
"""Widths and heights as shares of the image, three for each head, the finest head's first."""
IGNORED_IOU = 0.5


def conv(before: int, after: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(after), nn.LeakyReLU(0.1)
    )


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(width, width // 2, 1), conv(width // 2, width, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def stage(before: int, after: int, count: int) -> nn.Sequential:
    return nn.Sequential(conv(before, after, 3, 2), *(Residual(after) for _ in range(count)))


def neck(before: int, width: int, count: int) -> nn.Sequential:
    layers = [conv(before, width, 1)]
    for _ in range(count):
        layers += [conv(width, 2 * width, 3), conv(2 * width, width, 1)]
    return nn.Sequential(*layers)


class Yolo(nn.Module):
    """Predictions of each head as [batch, anchor, row, column, x y w h object classes...], finest head first."""

    def __init__(self, size: str) -> None:
        super().__init__()
        width, repeats, count = (32, [1, 2, 8, 8, 4], 2) if size == "full" else (4, [1, 1, 1, 1, 1], 1)
        self.outputs = 5 + num_classes(size)
        self.stem = conv(3, width, 3)
        self.stages = nn.ModuleList(stage(width << i, width << i + 1, n) for i, n in enumerate(repeats))
        self.necks = nn.ModuleList(
            neck((width << i + 1) + (0 if i == 4 else width << i), width << i, count) for i in (2, 3, 4)
        )
        self.ups = nn.ModuleList(conv(width << i + 1, width << i, 1) for i in (2, 3))
        self.heads = nn.ModuleList(
            nn.Sequential(conv(width << i, width << i + 1, 3), nn.Conv2d(width << i + 1, 3 * self.outputs, 1))
            for i in (2, 3, 4)
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        x, features = self.stem(images), []
        for part in self.stages:
            x = part(x)
            features.append(x)
        found: list[Tensor] = []
        coarser = x
        for level in (2, 1, 0):
            x = features[2 + level]
            if found:  # what the coarser neck saw, enlarged, stands beside it
                x = torch.cat([F.interpolate(self.ups[level](coarser), scale_factor=2.0), x], 1)
            x = coarser = self.necks[level](x)
            found.insert(0, self.heads[level](x).unflatten(1, (3, self.outputs)).permute(0, 1, 3, 4, 2))
        return found


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Of boxes given by centre, width and height."""
    low = torch.maximum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
    high = torch.minimum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
    common = (high - low).clamp(min=0).prod(-1)
    return common / (a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - common + 1e-9)


def yolo_loss(predictions: list[Tensor], boxes: Tensor) -> Tensor:
    """Each box (class, x, y, w, h; class -1 for none) is asked of the one anchor of nine whose shape fits it best."""
    sizes = boxes[..., None, 3:]
    anchors = ANCHORS.to(boxes.device)
    best = iou(F.pad(sizes, (2, 0)), F.pad(anchors, (2, 0))).argmax(-1)
    losses = [
        head_loss(found, boxes, best - 3 * level, anchors[3 * level : 3 * level + 3])
        for level, found in enumerate(predictions)
    ]
    return torch.stack(losses).sum() / len(boxes)


def head_loss(found: Tensor, boxes: Tensor, best: Tensor, anchors: Tensor) -> Tensor:
    side = found.shape[2]
    sample, number = ((boxes[..., 0] >= 0) & (best >= 0) & (best < 3)).nonzero(as_tuple=True)
    mine, anchor = boxes[sample, number], best[sample, number]
    column, row = (mine[:, 1:3] * side).long().clamp(max=side - 1).unbind(-1)
    asked = torch.zeros(found.shape[:4], device=found.device)
    asked[sample, anchor, row, column] = 1
    weight = torch.where(overlaps(found.detach(), boxes, anchors) & (asked == 0), 0.0, 1.0)
    objects = F.binary_cross_entropy_with_logits(found[..., 4], asked, weight, reduction="sum")
    at = found[sample, anchor, row, column]
    centres = mine[:, 1:3] * side - torch.stack([column, row], -1)
    shapes = (mine[:, 3:] / anchors[anchor]).log()
    kinds = F.one_hot(mine[:, 0].long(), found.shape[-1] - 5).to(found.dtype)
    place = F.binary_cross_entropy_with_logits(at[:, :2], centres, reduction="sum")
    shape = F.mse_loss(at[:, 2:4], shapes, reduction="sum")
    return place + shape + objects + F.binary_cross_entropy_with_logits(at[:, 5:], kinds, reduction="sum")


def overlaps(found: Tensor, boxes: Tensor, anchors: Tensor) -> Tensor:
    """Where a predicted box already fits a true one well, so that it is not called background."""
    side = found.shape[2]
    steps = torch.arange(side, device=found.device)
    row, column = torch.meshgrid(steps, steps, indexing="ij")
    centres = (found[..., :2].sigmoid() + torch.stack([column, row], -1)) / side
    shapes = found[..., 2:4].clamp(max=4).exp() * anchors[:, None, None]
    each = torch.cat([centres, shapes], -1).flatten(1, 3)
    fits = iou(each[:, :, None], boxes[:, None, :, 1:]) * (boxes[:, None, :, 0] >= 0)
    return (fits.amax(-1) > IGNORED_IOU).unflatten(1, found.shape[1:4])


def num_classes(size: str) -> int:
    return 20 if size == "full" else 10


def image_side(size: str) -> int:
    return 416 if size == "full" else 64
