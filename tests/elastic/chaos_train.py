"""Trains a small model and files which samples each EST has seen, as a user's script: the program of the chaos test.

Runs in worker processes. Every data set has a length that the ESTs divide, so each sample comes once in an epoch.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from torch.utils.data import DataLoader, Dataset

import easyscale
from consistency.recipes import RECIPES, SEED, Images, Text

DATA = {"cnn": lambda: Images(48), "transformer": lambda: Text(48), "augmented": lambda: Images(48, augment=True)}


class Indexed(Dataset):
    """Each sample with its index."""

    def __init__(self, dataset):
        self._dataset = dataset

    def __len__(self):
        return len(self._dataset)

    def __getitem__(self, index):
        return index, self._dataset[index]


parser = argparse.ArgumentParser()
parser.add_argument("recipe", choices=DATA)
parser.add_argument("--form", default="two_loop")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--workers", type=int, default=0, help="data workers")
parser.add_argument("--persistent", action="store_true")
parser.add_argument("--evaluate-every", type=int, default=0)
args = parser.parse_args()

recipe = RECIPES[args.recipe]
session = easyscale.session(seed=SEED)
model = recipe.model()
optimizer = recipe.optimizer(model)
scheduler = recipe.lr_scheduler(optimizer)
dataset = Indexed(DATA[args.recipe]())
loader = DataLoader(dataset, batch_size=2, shuffle=True, num_workers=args.workers, persistent_workers=args.persistent)
validation = DataLoader(dataset, batch_size=4)
model, optimizer, loader, validation, scheduler = session.prepare(model, optimizer, loader, validation, scheduler)
evaluations = session.register("evaluations", {"totals": []})


def inner(indices, batch):
    session.log(**{f"sample{place}": float(index) for place, index in enumerate(indices)})
    recipe.loss(model, batch, session.virtual_rank, session.global_step).backward()


def update():
    if recipe.max_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_norm)
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()


def evaluate():
    model.eval()
    with torch.no_grad():
        seen = sum(len(model(x)) for _, (x, _) in validation)
    model.train()
    evaluations["totals"].append(session.sum(seen))


for _ in session.epochs(args.epochs):
    if args.form == "two_loop":
        for step in session.steps(loader):
            for indices, batch in step:
                inner(indices, batch)
            update()
            if args.evaluate_every and (step.global_step + 1) % args.evaluate_every == 0:
                evaluate()
    else:
        for indices, batch in loader:
            inner(indices, batch)
            update()
print("end", session.global_step, evaluations["totals"])
