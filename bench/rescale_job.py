"""What the rescale bench trains: the same model and loop as an EasyScale job and as a DDP script with checkpoints.

    rescale_job.py easyscale SIZE STAMPS
    rescale_job.py ddp SIZE STAMPS CHECKPOINT EVERY

It trains until it is ended, and stamps every step that it has finished.
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

import easyscale
from common import Cnn, Transformer, loss_of
from stamps import Stamper

ENDLESS = 1_000_000
NUM_ESTS = 4


def build(size: str) -> tuple[nn.Module, torch.optim.Optimizer, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    if size == "small":
        model: nn.Module = Cnn()
        batch = (torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,)))
    else:
        model = Transformer(vocabulary=8192, width=1024, layers=7, length=16)
        batch = (torch.randint(0, 8192, (1, 16)), torch.randint(0, 8192, (1, 16)))
    return model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9), batch


def train_elastic(size: str, stamper: Stamper) -> None:
    session = easyscale.session(seed=0)
    model, optimizer, batch = build(size)
    model, optimizer = session.prepare(model, optimizer)
    for step in session.steps(ENDLESS):
        for _ in step:
            loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        stamper.stamp(step.global_step)


def train_ddp(size: str, stamper: Stamper, checkpoint: Path, every: int) -> None:
    """As PyTorch's tutorial for torchrun does it: rank 0 saves, everyone loads what there is."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    inner, optimizer, batch = build(size)
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, mmap=True)
        inner.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
        del saved
    model = nn.parallel.DistributedDataParallel(inner)
    for step in range(first, ENDLESS):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        stamper.stamp(step)
        if (step + 1) % every == 0 and dist.get_rank() == 0:
            partial = checkpoint.with_suffix(".partial")
            state = {"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, partial)
            partial.replace(checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=["easyscale", "ddp"])
    parser.add_argument("size", choices=["small", "large"])
    parser.add_argument("stamps", type=Path)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("every", type=int, nargs="?")
    args = parser.parse_args()
    if args.side == "easyscale":
        train_elastic(args.size, Stamper(args.stamps))
    else:
        train_ddp(args.size, Stamper(args.stamps), args.checkpoint, args.every)


if sys.argv[0].endswith("rescale_job.py"):  # the bench itself only imports build()
    main()
