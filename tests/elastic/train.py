"""Trains a recipe of the consistency tests, as a user's script: the program of all tests of this folder.

Runs in worker processes. What it prints and what it counts by itself shows how often the bodies of its loops ran.
"""

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from torch.utils.data import DataLoader

import easyscale
from consistency.recipes import RECIPES, SEED

parser = argparse.ArgumentParser()
parser.add_argument("recipe")
parser.add_argument("--form", default="two_loop")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--own-epochs", action="store_true", help="count epochs without session.epochs")
parser.add_argument("--evaluate", action="store_true")
parser.add_argument("--evaluate-every", type=int, default=0)
parser.add_argument("--sleep", type=float, default=0.0, help="seconds in every mini-batch")
parser.add_argument("--workers", type=int, help="data workers")
parser.add_argument("--persistent", action="store_true")
args = parser.parse_args()

recipe = RECIPES[args.recipe]
session = easyscale.session(seed=SEED)
model = recipe.model()
optimizer = recipe.optimizer(model)
data = recipe.data
num_workers = data.num_workers if args.workers is None else args.workers
loader = DataLoader(
    data.dataset(),
    batch_size=data.batch_size,
    shuffle=data.shuffle,
    drop_last=data.drop_last,
    num_workers=num_workers,
    persistent_workers=args.persistent or data.persistent_workers,
)
validation = DataLoader(data.dataset(), batch_size=data.batch_size)
scheduler = recipe.lr_scheduler(optimizer) if recipe.lr_scheduler else None
prepared = session.prepare(model, optimizer, loader, validation, *filter(None, [scheduler]), **recipe.options)
model, optimizer, loader, validation, *rest = prepared
scheduler = rest[0] if rest else None
counts = session.register("counts", {"outer": 0, "evaluations": []})


def inner(batch):
    loss = recipe.loss(model, batch, session.virtual_rank, session.global_step)
    if args.sleep:
        time.sleep(args.sleep)
    loss.backward()
    session.log(loss=loss)


def update(step):
    if recipe.max_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_norm)
    optimizer.step()
    if (step + 1) % recipe.zero_every == 0:
        optimizer.zero_grad(set_to_none=recipe.set_to_none)
    if scheduler is not None:
        scheduler.step()


def evaluate():
    model.eval()
    seen = 0
    with torch.no_grad():
        for batch in validation:
            recipe.loss(model, batch, session.virtual_rank, session.global_step)
            seen += len(batch[0])
    model.train()
    total = session.sum(seen)
    assert total == len(validation.dataset), total
    counts["evaluations"].append((session.global_step, total))


for _ in range(args.epochs) if args.own_epochs else session.epochs(args.epochs):
    if args.form == "two_loop":
        for step in session.steps(loader):
            for batch in step:
                inner(batch)
            update(step.global_step)
            counts["outer"] += 1
            if args.evaluate_every and (step.global_step + 1) % args.evaluate_every == 0:
                evaluate()
    else:
        for batch in loader:
            inner(batch)
            update(session.global_step)
            if session.sync_gradients:
                counts["outer"] += 1
    if args.evaluate:
        evaluate()
print("counts", counts["outer"], counts["evaluations"], session.global_step)
