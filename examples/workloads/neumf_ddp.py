"""NeuMF learns who takes which item, on synthetic data: the plain DDP twin of neumf.py."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import data
import text

args = data.arguments(__doc__, batch_size=256)
dist.init_process_group()
device = torch.device("cuda", dist.get_node_local_rank()) if torch.cuda.is_available() else torch.device("cpu")
torch.manual_seed(0)
model = DistributedDataParallel(text.NeuMF(args.size).to(device))
torch.manual_seed(dist.get_rank())  # each rank its own dropout, and the same parameters as before
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
sampler = DistributedSampler(train_set := data.ratings(args))
loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for batch in loader:
        pairs, taken = (tensor.to(device) for tensor in batch)
        loss = F.binary_cross_entropy_with_logits(model(pairs), taken)
        loss.backward()
        data.note_loss(args.losses, dist.get_rank(), dist.get_world_size(), loss)
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
