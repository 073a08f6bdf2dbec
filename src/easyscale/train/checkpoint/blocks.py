"""Which bytes of tensors are stored, where in the file, and how tensors come back from them. Runs in the worker.

A block is a run of bytes in ``tensors.safetensors``. A tensor that shares no memory is a block of its own. Tensors that
are the same piece of memory share a block, and tensors that overlap are views of one block of bytes, so that they are
tied again when they are read.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from easyscale.core.errors import RefusedError

ALIGNMENT = 64
"""Where the tensors begin in the file: a multiple of this, as processors like it."""

_SHARED_ALIGNMENT = 16  # of the largest element, complex128
_RESERVED = "__metadata__"  # in the header of a safetensors file

_FILE_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_REAL_NAMES = {torch.complex32: "F16", torch.complex64: "F32", torch.complex128: "F64"}

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""Elements are copied as these, by size: no kernel has to know the dtype, and no NaN changes."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """How one tensor comes back.

    Attributes:
        block: name of the block whose bytes it has.
        stride: where its elements are, if not one after another in the order of its shape.
        offset: its first byte in a block that several tensors share.
    """

    dtype: str
    shape: list[int]
    block: str
    stride: list[int] | None = None
    offset: int | None = None


@dataclass(slots=True)
class Block:
    """A run of bytes, and a tensor that has them.

    Attributes:
        source: contiguous or not, its elements in the order of its shape are the block's.
        file_dtype: what the header of the file calls them.
        alignment: its first byte's address in the file is a multiple of this.
        begin: first byte in the file; known once all blocks are.
    """

    name: str
    source: Tensor
    file_dtype: str
    file_shape: list[int]
    alignment: int
    begin: int = 0

    @property
    def num_bytes(self) -> int:
        return self.source.numel() * self.source.element_size()


@dataclass(slots=True)
class FileLayout:
    """Everything about a file of tensors but the values."""

    blocks: list[Block] = field(default_factory=list)
    entry_by_name: dict[str, TensorEntry] = field(default_factory=dict)
    header: bytes = b""

    @property
    def num_bytes(self) -> int:
        return max((block.begin + block.num_bytes for block in self.blocks), default=len(self.header))


def lay_out(tensors: Mapping[str, Tensor]) -> FileLayout:
    """Decide what is stored and where.

    Raises:
        RefusedError: a tensor that cannot come back as it is.
    """
    layout = FileLayout()
    for name, tensor in tensors.items():
        _check(name, tensor)
    plain = {name: tensor.detach().resolve_conj().resolve_neg() for name, tensor in tensors.items()}
    for cluster in _clusters(plain):
        _add_cluster(layout, {name: plain[name] for name in cluster}, plain)
    _place(layout)
    return layout


def bits_of(tensor: Tensor) -> Tensor:
    """The same memory as elements that every kernel can copy."""
    return tensor.view(_BITS[tensor.element_size()])


def _check(name: str, tensor: Tensor) -> None:
    found = None
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        found = f"a {type(tensor).__name__}"
    elif tensor.layout != torch.strided or tensor.is_nested:
        found = "sparse or nested"
    elif tensor.is_quantized:
        found = "quantized"
    elif tensor.is_meta:
        found = "on the device 'meta', that is without values"
    elif name == _RESERVED or not name.isprintable():
        found = "a name that the file format does not allow"
    if found is not None:
        raise RefusedError(
            f"tensor {name!r} is {found}, which a checkpoint cannot keep: give it as an ordinary dense tensor"
        )


def _clusters(tensors: Mapping[str, Tensor]) -> Iterable[list[str]]:
    """Names whose memory overlaps, together; in the order in which they were given."""
    extent_by_name = {name: _extent(tensor) for name, tensor in tensors.items()}
    order = {name: number for number, name in enumerate(tensors)}
    clusters: list[list[str]] = []
    end, device = -1, None
    for name in sorted(tensors, key=lambda name: (str(tensors[name].device), extent_by_name[name])):
        first, last = extent_by_name[name]
        if first < last and first < end and tensors[name].device == device:
            clusters[-1].append(name)
            end = max(end, last)
        else:
            clusters.append([name])
            end, device = last, tensors[name].device
    for cluster in clusters:
        cluster.sort(key=order.__getitem__)
    return sorted(clusters, key=lambda cluster: order[cluster[0]])


def _extent(tensor: Tensor) -> tuple[int, int]:
    """First and past-the-last address of its elements; equal if there are none."""
    begin = tensor.data_ptr()
    if tensor.numel() == 0:
        return begin, begin
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


def _add_cluster(layout: FileLayout, tensors: Mapping[str, Tensor], names: Container[str]) -> None:
    first_name, first = next(iter(tensors.items()))
    if all(_is_same_view(first, tensor) for tensor in tensors.values()):
        layout.blocks.append(_own_block(first_name, first))
        for name, tensor in tensors.items():
            layout.entry_by_name[name] = TensorEntry(_name(tensor), list(tensor.shape), first_name, _stride(tensor))
        return
    base, base_address = _shared_bytes(tensors)
    block_name = " + ".join(tensors)
    while block_name in names:
        block_name += "'"
    layout.blocks.append(Block(block_name, base, "U8", list(base.shape), _SHARED_ALIGNMENT))
    for name, tensor in tensors.items():
        offset = tensor.data_ptr() - base_address
        layout.entry_by_name[name] = TensorEntry(
            _name(tensor), list(tensor.shape), block_name, list(tensor.stride()), offset
        )


def _is_same_view(one: Tensor, other: Tensor) -> bool:
    return (
        one.data_ptr() == other.data_ptr()
        and one.dtype == other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
    )


def _shared_bytes(tensors: Mapping[str, Tensor]) -> tuple[Tensor, int]:
    """The bytes that overlapping tensors cover, as a tensor, and the address of the first one."""
    extents = [_extent(tensor) for tensor in tensors.values()]
    storage = next(iter(tensors.values())).untyped_storage()
    start = min(begin for begin, _ in extents) - storage.data_ptr()
    start -= start % _SHARED_ALIGNMENT
    stop = max(end for _, end in extents) - storage.data_ptr()
    if start < 0 or stop > storage.nbytes():
        raise RefusedError(
            f"tensors {', '.join(map(repr, tensors))} overlap in memory that torch did not allocate, which a "
            f"checkpoint cannot keep: give copies of them"
        )
    base = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, start, (stop - start,), (1,))
    return base, storage.data_ptr() + start


def _own_block(name: str, tensor: Tensor) -> Block:
    shape, size = list(tensor.shape), tensor.element_size()
    if tensor.dtype in _FILE_DTYPES:
        return Block(name, tensor, _FILE_DTYPES[tensor.dtype], shape, size)
    if tensor.dtype in _REAL_NAMES:
        return Block(name, tensor, _REAL_NAMES[tensor.dtype], [*shape, 2], size)
    return Block(name, tensor, "U8", [*shape, size], size)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _stride(tensor: Tensor) -> list[int] | None:
    """Its strides if they are worth keeping: dense, but in another order (channels_last, say)."""
    if tensor.is_contiguous():
        return None
    dense = torch.empty_like(tensor, device="meta").stride()
    return list(dense) if dense == tensor.stride() else None


def _place(layout: FileLayout) -> None:
    """Largest elements first, so that without gaps, which the format forbids, all are aligned."""
    layout.blocks.sort(key=lambda block: -block.alignment)
    table: dict[str, Any] = {_RESERVED: {"format": "pt"}}
    position = 0
    for block in layout.blocks:
        block.begin = position
        position += block.num_bytes
        table[block.name] = {
            "dtype": block.file_dtype,
            "shape": block.file_shape,
            "data_offsets": [block.begin, position],
        }
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    layout.header = len(text).to_bytes(8, "little") + text
    for block in layout.blocks:
        block.begin += len(layout.header)
