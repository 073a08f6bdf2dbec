"""A CNN with BatchNorm and dropout learns scikit-learn's handwritten digits.

Runs in every worker process, as any training script. Nothing here knows how many workers there are:

    python examples/digits.py                                  one process, one EST
    easyscale run --ests 4 --workers 2 examples/digits.py      four ESTs on two workers
    easyscale run --ests 4 --placement "3,0|2,1" examples/digits.py      the same model, in every bit
    easyscale run --ests 4 --workers 2 --rescale 90:4,180:1 examples/digits.py    and again, on 2, 4 and 1
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import easyscale


class DigitsNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 4 * 4, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


def load_data() -> tuple[TensorDataset, Tensor, Tensor]:
    """The training set, and the held-out images and labels: every fifth one, evenly over the ten digits."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(digits.target).long()
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=0, stratify=labels)
    return TensorDataset(images[train], labels[train]), images[test], labels[test]


def share_correct(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(1) == labels).double().mean())


def train_epoch(session, model, optimizer, loader, lr_scheduler) -> None:
    """The two-loop form: the inner body is one EST's turn, the outer body one global step."""
    for step in session.steps(loader):
        for images, labels in step:
            images, labels = images.to(session.device), labels.to(session.device)
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
            loss.backward()
            session.log(loss=loss, accuracy=share_correct(logits, labels))
        optimizer.step()
        optimizer.zero_grad()
        lr_scheduler.step()


def train_epoch_drop_in(session, model, optimizer, loader, lr_scheduler) -> None:
    """The drop-in form: a plain PyTorch loop; the prepared optimizer acts once per global step."""
    for images, labels in loader:
        images, labels = images.to(session.device), labels.to(session.device)
        optimizer.zero_grad()
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        session.log(loss=loss, accuracy=share_correct(logits, labels))
        optimizer.step()
        lr_scheduler.step()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    share = share_correct(model(images), labels)
    model.train()
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16, help="samples of one EST in one step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--drop-in", action="store_true", help="train with the drop-in form of the loop")
    args = parser.parse_args()

    session = easyscale.session(seed=0)
    train_set, test_images, test_labels = load_data()
    test_images, test_labels = test_images.to(session.device), test_labels.to(session.device)

    model = DigitsNet().to(session.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    loader = session.prepare(DataLoader(train_set, batch_size=args.batch_size, shuffle=True))
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs * len(loader))
    model, optimizer, lr_scheduler = session.prepare(model, optimizer, lr_scheduler)

    train = train_epoch_drop_in if args.drop_in else train_epoch
    for epoch in session.epochs(args.epochs):
        train(session, model, optimizer, loader, lr_scheduler)
        test_accuracy = accuracy(model, test_images, test_labels)
        if session.is_main:
            print(f"epoch {epoch + 1:2}: accuracy {test_accuracy:.1%}", flush=True)
    if session.is_main:
        print(f"test accuracy {test_accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
