"""What ESTs carry from step to step: kept by every worker, so that a lost worker's ESTs go on elsewhere. In the worker.

With ``rng="stepwise"``, map-style data and buffers broadcast, an EST carries nothing and nothing is sent. Otherwise
every pass ends with a message of each worker to all: random streams (``rng="ddp"``: about 15 kB for each EST),
positions of iterable datasets, buffers of their own (``broadcast_buffers=False``). It counts when the pass does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from easyscale.core.errors import JobFailedError, RefusedError, UsageError
from easyscale.train.checkpoint.decode import decode
from easyscale.train.checkpoint.encode import encode
from easyscale.train.context.rng import RngState
from easyscale.train.data.loader import ElasticLoader
from easyscale.train.data.streams import Stream
from easyscale.train.elastic.transfer import empty_tensors, table_of
from easyscale.train.reduce.channel import Channel
from easyscale.train.turns import Turns

_RNG = "easyscale.RngState"


class Contexts:
    """The contexts of all ESTs as they were when the last pass that counts had ended.

    Args:
        turns: run the local ESTs.
        is_carried: whether ESTs carry their random streams.

    Attributes:
        running: the streams of the loops that run, with their loaders.
    """

    def __init__(self, turns: Turns, *, is_carried: bool) -> None:
        self.running: list[tuple[ElasticLoader, Stream]] = []
        self._turns = turns
        self._is_carried = is_carried
        self._by_rank: dict[int, dict[str, Any]] = {}
        self._told: dict[int, dict[str, Any]] | None = None
        if is_carried:
            self._by_rank = {rank: {"rng": turns.rng.state_of(rank)} for rank in turns.rng.ranks}

    @property
    def is_needed(self) -> bool:
        """Whether ESTs carry anything."""
        streams = any(loader.order.is_stream for loader, _ in self.running)
        return self._is_carried or streams or self._turns.has_own_buffers

    # -- told in every pass ------------------------------------------------------------------------------------

    def tell(self, channel: Channel | None) -> None:
        """Collective: every worker learns the contexts of all ESTs; they count after ``adopt``."""
        if channel is None or not self.is_needed:
            return
        data = _pack(self._local())
        given = channel.call(lambda: channel.gather_bytes(data))
        self._told = {rank: context for one in map(_unpack, given) for rank, context in one.items()}

    def adopt(self) -> None:
        """The pass counts."""
        if self._told is not None:
            self._by_rank, self._told = self._told, None

    def look(self) -> None:
        """The only worker has all ESTs: note where they are."""
        if self.is_needed:
            self._by_rank = self._local()

    def _local(self) -> dict[int, dict[str, Any]]:
        turns = self._turns
        contexts: dict[int, dict[str, Any]] = {
            rank: {"rng": turns.rng.state_of(rank), "buffers": turns.own_buffers_of(rank), "streams": {}}
            for rank in turns.ranks
        }
        for rank, context in contexts.items():  # also of loaders whose loop is over: data workers may live on
            context["streams"] = dict(self._by_rank.get(rank, {}).get("streams", {}))
        try:
            for loader, stream in self.running:
                for rank, state in stream.state(is_over=False).get("ranks", {}).items():
                    kept = {**state, "est": None} if "est" in state else state  # that one is in "rng"
                    contexts[rank]["streams"][loader.number] = kept
        except UsageError as error:  # it goes on as it is, as long as it need not move
            for context in contexts.values():
                context["unknown"] = str(error)
        return contexts

    # -- used when ESTs move -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse to move what cannot go on elsewhere.

        Raises:
            RefusedError: with the reason.
        """
        for context in self._by_rank.values():
            if "unknown" in context:
                raise RefusedError(context["unknown"])

    def give(self) -> None:
        """Put every local EST where it was when the last pass that counts had ended.

        Raises:
            JobFailedError: what a lost worker's ESTs carried is not known.
        """
        try:
            self.check()
        except RefusedError as error:
            raise JobFailedError(f"the job cannot go on with other workers: {error}") from error
        for rank in self._turns.ranks:
            if not self._by_rank:  # nothing was carried anywhere yet
                continue
            context = self._by_rank.get(rank)
            if context is None:
                raise JobFailedError(
                    f"what virtual rank {rank} carried is gone with its worker: resume from a checkpoint"
                )
            if self._is_carried:
                self._turns.rng.put(rank, context["rng"])
            if context.get("buffers"):
                self._turns.put_own_buffers(rank, context["buffers"])

    def of_streams(self, loader: ElasticLoader) -> dict[int, Any]:
        """What streams over ``loader`` keep beside the number of a mini-batch, by virtual rank."""
        states = {}
        for rank, context in self._by_rank.items():
            state = context.get("streams", {}).get(loader.number)
            if state is not None:
                states[rank] = {**state, "est": context["rng"]} if "est" in state else state
        return states

    def position_of(self, loader: ElasticLoader) -> dict[str, Any]:
        """Where ``loader`` stands, for all ESTs."""
        state = loader.state_dict()
        streams = self.of_streams(loader)
        if streams:
            state["stream"] = {"ranks": streams}
        return state

    def resume(self, loaders: Iterable[ElasticLoader]) -> None:
        """Loaders that no loop is over begin their next one with the ESTs that this worker has now."""
        running = [loader for loader, _ in self.running]
        for loader in loaders:
            if loader not in running and self.of_streams(loader):
                loader.load_state_dict(self.position_of(loader))

    # -- handed over -------------------------------------------------------------------------------------------

    def state(self) -> Any:
        """For ``load``, elsewhere."""
        return plain(self._by_rank)

    def load(self, state: Any) -> None:
        """Take over what another worker knows."""
        self._by_rank = rich(state)


def plain(value: Any) -> Any:
    """``value`` without types of our own."""
    if isinstance(value, RngState):
        return (_RNG, value.torch_cpu, value.python, value.numpy, value.device)
    if type(value) is dict:
        return {key: plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    return value


def rich(value: Any) -> Any:
    """The way back."""
    if type(value) is tuple and value[:1] == (_RNG,):
        return RngState(*value[1:])
    if type(value) is dict:
        return {key: rich(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(rich(item) for item in value)
    return value


def _pack(value: Any) -> bytes:
    structure, tensors = encode(plain(value), "contexts")
    head = json.dumps([structure, table_of(tensors)]).encode()
    return b"".join([len(head).to_bytes(8, "little"), head, *map(_bytes_of, tensors.values())])


def _bytes_of(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _unpack(data: bytes) -> Any:
    stop = 8 + int.from_bytes(data[:8], "little")
    structure, table = json.loads(data[8:stop])
    tensors = empty_tensors(table)
    for tensor in tensors.values():
        if tensor.numel():
            part = bytearray(data[stop : stop + tensor.nbytes])
            tensor.copy_(torch.frombuffer(part, dtype=tensor.dtype).reshape(tensor.shape))
            stop += tensor.nbytes
    return rich(decode(structure, tensors))
