"""Swin Transformer with drop path on digits."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import data
import easyscale
import vision

args = data.arguments(__doc__, batch_size=4)
session = easyscale.session(seed=0)
model = vision.Swin(args.size).to(session.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
loader = DataLoader(data.images(args), batch_size=args.batch_size, shuffle=True)
model, optimizer, loader = session.prepare(model, optimizer, loader)

for _ in session.epochs(args.epochs):
    for step in session.steps(loader):
        for batch in step:
            images, labels = (tensor.to(session.device) for tensor in batch)
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            data.note_loss(args.losses, session.virtual_rank, session.num_ests, loss)
        optimizer.step()
        optimizer.zero_grad()
