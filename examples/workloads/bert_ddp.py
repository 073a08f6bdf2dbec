"""BERT finds a quotation's place in a passage of Shakespeare: the plain DDP twin of bert.py."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import data
import text

args = data.arguments(__doc__, batch_size=4)
dist.init_process_group()
device = torch.device("cuda", dist.get_node_local_rank()) if torch.cuda.is_available() else torch.device("cpu")
torch.manual_seed(0)
model = DistributedDataParallel(text.BertSpans(args.size).to(device))
torch.manual_seed(dist.get_rank())  # each rank its own dropout, and the same parameters as before
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
sampler = DistributedSampler(train_set := data.quotations(args))
loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for batch in loader:
        ids, answer = (tensor.to(device) for tensor in batch)
        loss = F.cross_entropy(model(ids).flatten(0, 1), answer.flatten())
        loss.backward()
        data.note_loss(args.losses, dist.get_rank(), dist.get_world_size(), loss)
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
