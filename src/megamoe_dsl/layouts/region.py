"""Region algebra: a buffer is declared once as named fields; size, offsets, device addresses, torch views and pictures follow from it.

    Region.stack("workspace", Field("count", (4,), U32), Field("mask", (8,), U64))      fields one after another
    Region.overlay("smem", main=region_a, combine=region_b)                             alternatives that use the same bytes, one at a time

A field is row-major over its shape.  Only fields of different alternatives of an `overlay` use the same bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from .arith import Int, align, is_host, wide

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DType:
    """An element type: its size in bytes and the torch dtype that views it."""

    name: str
    itemsize: int
    torch_name: str


U8 = DType("u8", 1, "uint8")
U16 = DType("u16", 2, "int16")
U32 = DType("u32", 4, "int32")
I32 = DType("i32", 4, "int32")
U64 = DType("u64", 8, "int64")
I64 = DType("i64", 8, "int64")
F32 = DType("f32", 4, "float32")
BF16 = DType("bf16", 2, "bfloat16")
E4M3 = DType("e4m3", 1, "float8_e4m3fn")


@dataclass(frozen=True)
class Field:
    """A named row-major array.  `align` is the alignment of its first byte, in bytes (0: the element's own)."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    align: int = 0

    def __post_init__(self) -> None:
        if any(not isinstance(n, int) or n < 0 for n in self.shape):
            raise ValueError(f"{self.name}.shape = {self.shape!r}: must be non-negative integers")
        if self.align and (self.align & (self.align - 1) or self.align % self.dtype.itemsize):
            raise ValueError(f"{self.name}.align = {self.align}: must be a power of two and a multiple of {self.dtype.itemsize}")

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def alignment(self) -> int:
        return self.align or self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(prod(self.shape[i + 1 :]) * self.dtype.itemsize for i in range(len(self.shape)))


@dataclass(frozen=True)
class Placement:
    """A field at a byte offset; `lifetimes` holds (overlay, alternative) pairs from the outermost overlay inwards."""

    field: Field
    offset: int
    lifetimes: tuple[tuple[str, str], ...] = ()

    @property
    def end(self) -> int:
        return self.offset + self.field.num_bytes


@dataclass(frozen=True)
class Region:
    """Named fields and their byte offsets.  `size` and `alignment` are in bytes."""

    name: str
    placements: tuple[Placement, ...]
    size: int
    alignment: int
    _index: dict[str, Placement] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index = {p.field.name: p for p in self.placements}
        if len(index) != len(self.placements):
            names = [p.field.name for p in self.placements]
            raise ValueError(f"{self.name}: field {next(n for n in names if names.count(n) > 1)!r} is declared twice")
        object.__setattr__(self, "_index", index)

    @staticmethod
    def stack(name: str, *parts: Field | Region) -> Region:
        """Parts one after another, each at the next multiple of its alignment."""
        placements: list[Placement] = []
        offset, alignment = 0, 1
        for part in parts:
            offset = align(offset, part.alignment)
            alignment = max(alignment, part.alignment)
            if isinstance(part, Region):
                placements += [Placement(p.field, offset + p.offset, p.lifetimes) for p in part.placements]
                offset += part.size
            else:
                placements.append(Placement(part, offset))
                offset += part.num_bytes
        return Region(name, tuple(placements), align(offset, alignment), alignment)

    @staticmethod
    def overlay(name: str, **alternatives: Region) -> Region:
        if any(name == overlay for r in alternatives.values() for p in r.placements for overlay, _ in p.lifetimes):
            raise ValueError(f"{name}: an overlay of this name lies inside one of its alternatives")
        alignment = max(r.alignment for r in alternatives.values())
        placements = [
            Placement(p.field, p.offset, ((name, choice), *p.lifetimes)) for choice, r in alternatives.items() for p in r.placements
        ]
        return Region(name, tuple(placements), align(max(r.size for r in alternatives.values()), alignment), alignment)

    def __iter__(self) -> Iterator[Placement]:
        return iter(self.placements)

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def __getitem__(self, name: str) -> Placement:
        """Placement of a field.  Raises KeyError with the known names."""
        try:
            return self._index[name]
        except KeyError:
            raise KeyError(f"{self.name} has no field {name!r}; it has {', '.join(self._index)}") from None

    def offset(self, name: str, *index: Int, widen: bool = False) -> Int:
        """Byte offset of an element; trailing indices that are left out are 0.  `widen` makes traced indices 64-bit first."""
        placement = self[name]
        if len(index) > len(placement.field.shape):
            raise IndexError(f"{name} has {len(placement.field.shape)} dimensions, got {len(index)} indices")
        offset: Int = placement.offset
        for i, (coordinate, stride) in enumerate(zip(index, placement.field.strides, strict=False)):
            if isinstance(coordinate, int) and not 0 <= coordinate < placement.field.shape[i]:
                raise IndexError(f"{name} index {i} = {coordinate}: must be in [0, {placement.field.shape[i]})")
            offset = (wide(coordinate) if widen else coordinate) * stride + offset
        return offset

    def address(self, base: Int, name: str, *index: Int) -> Int:
        """Address of an element of the region that starts at `base`, computed in the width of `base`."""
        return base + self.offset(name, *index, widen=not is_host(base) and base.width == 64)

    def view(self, buffer: torch.Tensor, name: str) -> torch.Tensor:
        """The field as a tensor that shares memory with `buffer`, a contiguous 1-D uint8 tensor of at least `size` bytes."""
        import torch

        if buffer.dtype != torch.uint8 or buffer.dim() != 1 or not buffer.is_contiguous() or buffer.numel() < self.size:
            raise ValueError(
                f"buffer = {buffer.dtype} {tuple(buffer.shape)}: must be a contiguous 1-D uint8 tensor of at least {self.size} bytes"
            )
        placement = self[name]
        dtype: Any = getattr(torch, placement.field.dtype.torch_name)
        return buffer[placement.offset : placement.end].view(dtype).view(placement.field.shape)


@dataclass(frozen=True)
class MBarrier:
    """`count` barriers with the same role in every CTA; with `leader_only` only those of a cluster's first CTA are used, for all of its
    CTAs. `arrivals` is what completes a phase besides transaction bytes; `who` arrives, `transaction` says what bytes are counted,
    `waits` who waits.
    """

    name: str
    count: int
    arrivals: int
    who: str
    transaction: str
    waits: str
    leader_only: bool = False

    @property
    def field(self) -> Field:
        return Field(f"{self.name}_barrier", (self.count,), U64)


@dataclass(frozen=True)
class SharedPlan:
    """Shared memory of a CTA: `region` has every field, `barriers` are its mbarriers in SMEM order."""

    region: Region
    barriers: tuple[MBarrier, ...] = ()


PLAN_OF_RING: Any = cached_property(lambda config: config.smem_plan(config.num_stages))
"""Of a configuration whose shared memory has a ring: the plan with as many stages as it says, which a kernel asks for at every address."""


def deepest_ring(config: Any) -> int:
    """Stages of the deepest ring with which the configuration's shared memory fits a CTA of its architecture; 0 when not one fits."""
    return most_that_fit(lambda stages: config.smem_plan(stages).region.size, config.arch.smem_bytes)


def most_that_fit(num_bytes: Callable[[int], int], capacity: int) -> int:
    """The largest count with `num_bytes(count) <= capacity`; `num_bytes` must not decrease. 0 if one does not fit."""
    num_bytes, above = cache(num_bytes), 1
    if (step := num_bytes(2) - num_bytes(1)) > 0:  # mostly they grow by as much each time
        straight = 1 + (capacity - num_bytes(1)) // step
        if straight > 0 and num_bytes(straight) <= capacity < num_bytes(straight + 1):
            return straight
    while num_bytes(above) <= capacity:
        above *= 2
    return bisect_right(range(1, above), capacity, key=num_bytes)
