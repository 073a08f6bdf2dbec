"""YOLOv3 finds digits in scenes."""

import torch
from torch.utils.data import DataLoader

import data
import detection
import easyscale

args = data.arguments(__doc__, batch_size=2)
session = easyscale.session(seed=0)
model = detection.Yolo(args.size).to(session.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
loader = DataLoader(data.scenes(args), batch_size=args.batch_size, shuffle=True)
model, optimizer, loader = session.prepare(model, optimizer, loader)

for _ in session.epochs(args.epochs):
    for step in session.steps(loader):
        for batch in step:
            images, boxes = (tensor.to(session.device) for tensor in batch)
            loss = detection.yolo_loss(model(images), boxes)
            loss.backward()
            data.note_loss(args.losses, session.virtual_rank, session.num_ests, loss)
        optimizer.step()
        optimizer.zero_grad()
