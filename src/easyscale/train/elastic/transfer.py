"""Sends the state of a job to workers that join it, over their new group. Runs in the worker; nothing is pickled.

First what there is, as JSON, then the tensors' bytes, small ones together.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from easyscale.train.checkpoint.decode import decode
from easyscale.train.checkpoint.encode import encode
from easyscale.train.checkpoint.state import JobFacts, JobState
from easyscale.train.process.faults import reach
from easyscale.train.reduce.channel import Channel

_MESSAGE_BYTES = 1 << 20
"""Larger tensors travel alone, from where they are to where they will be: putting them together would copy them."""


def table_of(tensors: Mapping[str, Tensor]) -> list[list[Any]]:
    """Names, dtypes and shapes, as JSON can hold them."""
    return [[name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for name, tensor in tensors.items()]


def empty_tensors(
    table: list[list[Any]], device: torch.device | None = None, places: Mapping[str, Tensor] = MappingProxyType({})
) -> dict[str, Tensor]:
    """Tensors such as ``table_of`` describes, to be filled: those of ``places`` that are like that, else new ones."""
    tensors = {}
    for name, dtype_name, shape in table:
        dtype, place = getattr(torch, dtype_name), places.get(name)
        if place is not None and place.dtype == dtype and list(place.shape) == shape and place.is_contiguous():
            tensors[name] = place
        else:
            tensors[name] = torch.empty(shape, dtype=dtype, device=device)
    return tensors


def send(channel: Channel, state: JobState, ranks: Sequence[int]) -> None:
    """Send ``state`` to some workers."""
    meta, more = encode(dict(state.meta), "meta", state.tensors)
    tensors = {**state.tensors, **more}
    facts = dataclasses.asdict(state.facts)
    head = json.dumps(
        {"facts": facts, "global_step": state.global_step, "meta": meta, "tensors": table_of(tensors)}
    ).encode()

    def job() -> None:
        for rank in ranks:
            channel.send(_on(channel, torch.tensor([len(head)])), rank)
            channel.send(_on(channel, torch.frombuffer(bytearray(head), dtype=torch.uint8)), rank)
        reach("rescale.in_state")
        for names in _messages(tensors):
            message = _pack(channel, [tensors[name] for name in names])
            for rank in ranks:
                channel.send(message, rank)

    channel.call(job)


def receive(channel: Channel, source: int, places: Mapping[str, Tensor] = MappingProxyType({})) -> JobState:
    """What worker ``source`` sends.

    Args:
        places: memory of this process to put tensors into, by their names: new memory costs more than receiving.
    """

    def job() -> tuple[Any, dict[str, Tensor]]:
        length = channel.receive(torch.zeros(1, dtype=torch.int64, device=channel.device), source)
        data = channel.receive(torch.empty(int(length), dtype=torch.uint8, device=channel.device), source)
        head = json.loads(data.cpu().numpy().tobytes())
        reach("rescale.in_state")
        tensors = empty_tensors(head["tensors"], channel.device, places)
        for names in _messages(tensors):
            _unpack(channel, [tensors[name] for name in names], source)
        return head, tensors

    head, tensors = channel.call(job)
    facts = JobFacts(**head["facts"])
    return JobState(facts, head["global_step"], tensors, decode(head["meta"], tensors))


def _messages(tensors: dict[str, Tensor]) -> Iterator[list[str]]:
    """Names of tensors that travel together: small ones until it is worth it, a large one alone."""
    names: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            continue
        if tensor.nbytes >= _MESSAGE_BYTES:
            yield [name]
            continue
        names.append(name)
        size += tensor.nbytes
        if size >= _MESSAGE_BYTES:
            yield names
            names, size = [], 0
    if names:
        yield names


def _pack(channel: Channel, tensors: list[Tensor]) -> Tensor:
    parts = [_on(channel, tensor.detach()).contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _unpack(channel: Channel, tensors: list[Tensor], source: int) -> None:
    views = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors]
    if len(views) == 1:
        channel.receive(views[0], source)
        return
    message = views[0].new_empty(sum(view.numel() for view in views))
    channel.receive(message, source)
    for view, part in zip(views, message.split([view.numel() for view in views]), strict=True):
        view.copy_(part)


def _on(channel: Channel, tensor: Tensor) -> Tensor:
    return tensor.to(channel.device)
