"""Trains on a stream, as a user's script: an iterable dataset that keeps its position, with random numbers in it.

Runs in worker processes.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from torch.utils.data import DataLoader

import easyscale
from consistency.loaders import Shards, Stream, sample

STREAMS = {"stream": lambda: Stream(50), "uneven": lambda: Shards((14, 11, 13, 12))}

parser = argparse.ArgumentParser()
parser.add_argument("stream", choices=STREAMS)
parser.add_argument("--form", default="two_loop")
parser.add_argument("--workers", type=int, default=0, help="data workers")
parser.add_argument("--accumulate", type=int, default=1)
args = parser.parse_args()

session = easyscale.session(seed=1)
torch.manual_seed(0)
model = torch.nn.Linear(sample(0).numel(), 1, dtype=torch.float64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
loader = DataLoader(STREAMS[args.stream](), batch_size=2, num_workers=args.workers)
model, optimizer, loader = session.prepare(model, optimizer, loader)


def train(batch):
    loss = torch.tanh(model(batch.flatten(1) / 100)).sum()
    loss.backward()
    session.log(loss=loss, first=batch.flatten()[0])


for _ in session.epochs(2):
    if args.form == "two_loop":
        for step in session.steps(loader, accumulate=args.accumulate):
            for batch in step:
                train(batch)
            optimizer.step()
            optimizer.zero_grad()
    else:
        for batch in loader:
            train(batch)
            optimizer.step()
            optimizer.zero_grad()
