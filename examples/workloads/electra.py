"""ELECTRA learns from Shakespeare which words were replaced."""

import torch
from torch.utils.data import DataLoader

import data
import easyscale
import text

args = data.arguments(__doc__, batch_size=4)
session = easyscale.session(seed=0)
model = text.Electra(args.size).to(session.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
loader = DataLoader(data.passages(args), batch_size=args.batch_size, shuffle=True)
model, optimizer, loader = session.prepare(model, optimizer, loader)

for _ in session.epochs(args.epochs):
    for step in session.steps(loader):
        for batch in step:
            (ids,) = (tensor.to(session.device) for tensor in batch)
            loss = model(ids)
            loss.backward()
            data.note_loss(args.losses, session.virtual_rank, session.num_ests, loss)
        optimizer.step()
        optimizer.zero_grad()
