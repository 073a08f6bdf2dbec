"""NeuMF learns who takes which item, on synthetic data."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import data
import easyscale
import text

args = data.arguments(__doc__, batch_size=256)
session = easyscale.session(seed=0)
model = text.NeuMF(args.size).to(session.device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(data.ratings(args), batch_size=args.batch_size, shuffle=True)
model, optimizer, loader = session.prepare(model, optimizer, loader)

for _ in session.epochs(args.epochs):
    for step in session.steps(loader):
        for batch in step:
            pairs, taken = (tensor.to(session.device) for tensor in batch)
            loss = F.binary_cross_entropy_with_logits(model(pairs), taken)
            loss.backward()
            data.note_loss(args.losses, session.virtual_rank, session.num_ests, loss)
        optimizer.step()
        optimizer.zero_grad()
