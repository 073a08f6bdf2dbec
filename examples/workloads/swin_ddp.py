"""Swin Transformer with drop path on digits: the plain DDP twin of swin.py."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import data
import vision

args = data.arguments(__doc__, batch_size=4)
dist.init_process_group()
device = torch.device("cuda", dist.get_node_local_rank()) if torch.cuda.is_available() else torch.device("cpu")
torch.manual_seed(0)
model = DistributedDataParallel(vision.Swin(args.size).to(device))
torch.manual_seed(dist.get_rank())  # each rank its own dropout, and the same parameters as before
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
sampler = DistributedSampler(train_set := data.images(args))
loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for batch in loader:
        images, labels = (tensor.to(device) for tensor in batch)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        data.note_loss(args.losses, dist.get_rank(), dist.get_world_size(), loss)
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
