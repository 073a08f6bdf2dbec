"""Our order for unmodified DDP: a communication hook that averages along the job's tree.

Runs in the processes of a plain DDP program, to show that it and EasyScale with ``reduction="tree"`` give equal bits
on a transport (NCCL, say) whose own order nobody knows::

    model = DistributedDataParallel(Net())
    model.register_comm_hook(None, easyscale.tree_hook)
"""

# no postponed annotations here: DDP looks at the hook's own
import torch
import torch.distributed as dist
from torch import Tensor

from easyscale.train.reduce.order import Node


def tree_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a DDP bucket over ranks along the tree: for ``DistributedDataParallel.register_comm_hook``.

    Every rank receives all gradients of the bucket: for proofs, not for speed.

    Args:
        group: the process group of the DDP module; None is the default one.
        bucket: from DDP; its gradients are not divided yet.
    """
    mine = bucket.buffer()
    size = dist.get_world_size(group)
    parts = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(parts, mine, group=group)

    def add(node: Node) -> Tensor:
        if node.is_leaf:
            return parts[node.start]
        left, right = node.split()
        return add(left).add_(add(right))

    average: torch.futures.Future[Tensor] = torch.futures.Future()
    average.set_result(add(Node(0, size)).mul_(1.0 / size))
    return average
