"""A layout: a function from coordinates to indices, given by a shape and a congruent stride.

    Layout((4, 8))                    (4,8):(1,4)    column-major
    Layout((4, (2, 4)), (2, (1, 8)))  nested modes

Shapes, strides and coordinates are nested tuples of integers; the first mode runs fastest everywhere.  Source: CuTe layout algebra
(NVIDIA/cutlass, media/docs/cpp/cute/01_layout.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any, TypeAlias

IntTuple: TypeAlias = "int | tuple[IntTuple, ...]"  # a positive or zero int, or a tuple of such
Coordinate: TypeAlias = Any  # an `IntTuple`


class LayoutError(ValueError):
    """A shape and stride that do not form a layout, or a coordinate out of range; the message names the condition."""


def flatten(value: Coordinate) -> tuple[Any, ...]:
    """The leaves, left to right."""
    if isinstance(value, tuple):
        return tuple(leaf for part in value for leaf in flatten(part))
    return (value,)


def product(shape: IntTuple) -> int:
    return prod(flatten(shape))


def congruent(a: Coordinate, b: Coordinate) -> bool:
    """Whether both have the same nesting."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(congruent(x, y) for x, y in zip(a, b, strict=True))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def unflatten(leaves: Iterable[Any], profile: IntTuple) -> Any:
    """The leaves, nested like `profile`."""
    remaining = leaves if isinstance(leaves, Iterator) else iter(leaves)
    return tuple(unflatten(remaining, part) for part in profile) if isinstance(profile, tuple) else next(remaining)


def compact_strides(shape: IntTuple) -> IntTuple:
    """Column-major strides: a leaf has the product of the leaves before it."""
    return unflatten(accumulate((1, *flatten(shape)), mul), shape)


def idx2crd(index: int, shape: IntTuple) -> Coordinate:
    """The natural coordinate of an index, congruent to `shape`; the last leaf takes what is left over, however large.  Inverse of `crd2idx`
    with compact strides."""
    if not isinstance(shape, tuple):
        return index
    parts = list[Coordinate]()
    for part in shape[:-1]:
        index, own = divmod(index, product(part))
        parts.append(idx2crd(own, part))
    return (*parts, *(idx2crd(index, part) for part in shape[-1:]))


def crd2idx(coordinate: Coordinate, shape: IntTuple, stride: IntTuple) -> int:
    """Index of a coordinate: the inner product of natural coordinate and stride.  Any mode may be given as one integer, which stands for
    `idx2crd` of it.  Raises `LayoutError` when the coordinate's rank does not fit the shape."""
    if isinstance(shape, tuple) and not isinstance(coordinate, tuple):
        coordinate = idx2crd(coordinate, shape)
    if not isinstance(coordinate, tuple):
        return int(coordinate * stride)
    if not isinstance(shape, tuple) or len(coordinate) != len(shape):
        raise LayoutError(f"coordinate {coordinate}: does not fit shape {shape}")
    assert isinstance(stride, tuple)
    return sum(crd2idx(*one) for one in zip(coordinate, shape, stride, strict=True))


_COMPACT: Any = None


@dataclass(frozen=True)
class Layout:
    """`shape` holds positive ints, `stride` non-negative ints nested alike; without a stride the layout is compact and column-major.

    Calling it maps a coordinate, an index of the domain, or any mixture of both, to an index of the codomain; integers may lie beyond the
    shape in the last leaf of a mode.  Raises `LayoutError` for shapes and strides that do not match or are out of range.
    """

    shape: IntTuple
    stride: IntTuple = field(default=_COMPACT)

    def __post_init__(self) -> None:
        if any(not isinstance(n, int) or n < 1 for n in flatten(self.shape)):
            raise LayoutError(f"shape {self.shape}: must hold positive integers")
        if self.stride is _COMPACT:
            object.__setattr__(self, "stride", compact_strides(self.shape))
        if not congruent(self.shape, self.stride):
            raise LayoutError(f"stride {self.stride}: must nest like shape {self.shape}")
        if any(not isinstance(n, int) or n < 0 for n in flatten(self.stride)):
            raise LayoutError(f"stride {self.stride}: must hold non-negative integers")

    def __call__(self, *coordinate: Coordinate) -> int:
        return crd2idx(coordinate[0] if len(coordinate) == 1 else coordinate, self.shape, self.stride)

    @property
    def size(self) -> int:
        return product(self.shape)

    @property
    def cosize(self) -> int:
        return 1 + sum((n - 1) * d for n, d in self.leaves)

    @property
    def rank(self) -> int:
        return len(self.shape) if isinstance(self.shape, tuple) else 1

    @property
    def leaves(self) -> list[tuple[int, int]]:
        """(extent, stride) of every leaf, left to right."""
        return list(zip(flatten(self.shape), flatten(self.stride), strict=True))

    @property
    def modes(self) -> tuple[Layout, ...]:
        if not isinstance(self.shape, tuple):
            return (self,)
        assert isinstance(self.stride, tuple)
        return tuple(Layout(n, d) for n, d in zip(self.shape, self.stride, strict=True))

    def __getitem__(self, mode: int) -> Layout:
        return self.modes[mode]

    def indices(self) -> list[int]:
        values = [0]
        for extent, stride in self.leaves:
            values = [value + i * stride for i in range(extent) for value in values]
        return values

    @property
    def injective(self) -> bool:
        """No index is hit twice.  Exact: enumerates unless the strides, sorted, nest."""
        reached = 1
        for stride, extent in sorted((d, n) for n, d in self.leaves if n > 1):
            if stride < reached:
                return len(set(self.indices())) == self.size
            reached += (extent - 1) * stride
        return True

    def __str__(self) -> str:
        return f"{format_tuple(self.shape)}:{format_tuple(self.stride)}"


def format_tuple(value: Coordinate) -> str:
    """CuTe's notation: no blanks, no trailing comma."""
    return "(" + ",".join(format_tuple(v) for v in value) + ")" if isinstance(value, tuple) else str(value)
