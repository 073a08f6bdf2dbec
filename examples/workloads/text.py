"""BERT with span answers, ELECTRA with replaced-token detection, and NeuMF, in plain torch.nn."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MASK = 1
"""The token that stands for one to be guessed; 0 separates, 2 is any rare word."""


class Layer(nn.Module):
    """Self-attention, then a feed-forward layer; each with dropout, and normalised after it is added."""

    def __init__(self, width: int, heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        attended = (self.dropout(scores.softmax(-1)) @ v).transpose(1, 2).flatten(2)
        x = self.norm_1(x + self.dropout(self.out(attended)))
        return self.norm_2(x + self.dropout(self.feed_forward(x)))


class Encoder(nn.Module):
    """Embedded tokens to hidden states; the embedding may be narrower, and another encoder's."""

    def __init__(self, words: nn.Embedding, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.words = words
        self.positions = nn.Embedding(length, words.embedding_dim)
        self.norm, self.dropout = nn.LayerNorm(words.embedding_dim), nn.Dropout(0.1)
        self.project = nn.Linear(words.embedding_dim, width) if words.embedding_dim != width else nn.Identity()
        self.layers = nn.Sequential(*(Layer(width, max(1, width // 64)) for _ in range(depth)))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        return self.layers(self.project(self.dropout(self.norm(x))))


def embedding(size: str, width: int) -> nn.Embedding:
    words = nn.Embedding(vocabulary(size), width)
    nn.init.normal_(words.weight, std=0.02)
    return words


class BertSpans(nn.Module):
    """BERT-base in full; for every token the logits of being the first and the last of the answer."""

    def __init__(self, size: str) -> None:
        super().__init__()
        width, depth = (768, 12) if size == "full" else (128, 2)
        self.encoder = Encoder(embedding(size, width), length(size), width, depth)
        self.ends = nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.ends(self.encoder(ids)).transpose(1, 2)


class Electra(nn.Module):
    """ELECTRA-base in full: a generator a third as wide fills masked tokens in, a discriminator finds which."""

    def __init__(self, size: str) -> None:
        super().__init__()
        width, depth = (768, 12) if size == "full" else (96, 2)
        words = embedding(size, width)
        self.generator = Encoder(words, length(size), width // 3, depth)
        self.guess = nn.Sequential(nn.Linear(width // 3, width), nn.GELU(), nn.LayerNorm(width))
        self.discriminator = Encoder(words, length(size), width, depth)
        self.detect = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, ids: Tensor) -> Tensor:
        """The loss: cross-entropy of the generator's guesses, and 50 times that of the discriminator's verdicts."""
        is_masked = torch.rand(ids.shape, device=ids.device) < 0.15
        is_masked[:, 0] = True  # so that there is one in any batch
        hidden = self.generator(ids.masked_fill(is_masked, MASK))[is_masked]
        logits = self.guess(hidden) @ self.generator.words.weight.T
        drawn = torch.multinomial(logits.detach().softmax(-1), 1).squeeze(-1)
        filled = ids.masked_scatter(is_masked, drawn)
        verdicts = self.detect(self.discriminator(filled)).squeeze(-1)
        is_replaced = (filled != ids).to(verdicts.dtype)
        return F.cross_entropy(logits, ids[is_masked]) + 50 * F.binary_cross_entropy_with_logits(verdicts, is_replaced)


class NeuMF(nn.Module):
    """The product of two embeddings beside a perceptron with dropout over two others: will this user take that item?"""

    def __init__(self, size: str) -> None:
        super().__init__()
        width = 64 if size == "full" else 32
        users, items = num_users_items(size)
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.deep_users, self.deep_items = nn.Embedding(users, 4 * width), nn.Embedding(items, 4 * width)
        widths = [8 * width, 4 * width, 2 * width, width]
        layers: list[nn.Module] = []
        for before, after in zip(widths, widths[1:], strict=False):
            layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(0.2)]
        self.deep = nn.Sequential(*layers)
        self.head = nn.Linear(2 * width, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        user, item = pairs.unbind(-1)
        deep = self.deep(torch.cat([self.deep_users(user), self.deep_items(item)], -1))
        return self.head(torch.cat([self.users(user) * self.items(item), deep], -1)).squeeze(-1)


def vocabulary(size: str) -> int:
    return 30522 if size == "full" else 512


def length(size: str) -> int:
    return 384 if size == "full" else 32


def num_users_items(size: str) -> tuple[int, int]:
    return (138_493, 26_744) if size == "full" else (500, 300)
