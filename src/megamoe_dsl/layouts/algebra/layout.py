"""A layout: a function from coordinates to indices, given by a shape and a congruent stride.

    Layout((4, 8))                    (4,8):(1,4)    column-major
    Layout((4, (2, 4)), (2, (1, 8)))  nested modes

Source: CuTe layout algebra (NVIDIA/cutlass, media/docs/cpp/cute/01_layout.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..arith import Int
from .int_tuple import AlgebraError, Coordinate, IntTuple, compact_strides, congruent, crd2idx, flatten, product

_COMPACT: Any = None


@dataclass(frozen=True)
class Layout:
    """`shape` holds positive ints, `stride` non-negative ints nested alike; without a stride the layout is compact and column-major.

    Calling it maps a coordinate, an index of the domain, or any mixture of both, to an index of the codomain; integers may be traced.
    Coordinates beyond the shape are allowed in the last leaf of a mode, and continue it.
    Raises `AlgebraError` for shapes and strides that do not match or are out of range.
    """

    shape: IntTuple
    stride: IntTuple = field(default=_COMPACT)

    def __post_init__(self) -> None:
        if any(not isinstance(n, int) or n < 1 for n in flatten(self.shape)):
            raise AlgebraError(f"shape {self.shape}: must hold positive integers")
        if self.stride is _COMPACT:
            object.__setattr__(self, "stride", compact_strides(self.shape))
        if not congruent(self.shape, self.stride):
            raise AlgebraError(f"stride {self.stride}: must nest like shape {self.shape}")
        if any(not isinstance(n, int) or n < 0 for n in flatten(self.stride)):
            raise AlgebraError(f"stride {self.stride}: must hold non-negative integers")

    def __call__(self, *coordinate: Coordinate) -> Int:
        """Index of one coordinate, or of one coordinate per mode."""
        return crd2idx(coordinate[0] if len(coordinate) == 1 else coordinate, self.shape, self.stride)

    @property
    def size(self) -> int:
        return product(self.shape)

    @property
    def cosize(self) -> int:
        """One more than the largest index."""
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
        """The top-level modes; a layout without nesting is its only mode."""
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


def join(*layouts: Layout) -> Layout:
    """The layouts as the modes of one.  Post-condition: join(a, b)(i, j) == a(i) + b(j)."""
    return Layout(tuple(a.shape for a in layouts), tuple(a.stride for a in layouts))


def row_major(*shape: int) -> Layout:
    """The last mode runs fastest: row_major(r, c)(i, j) == i * c + j."""
    strides, current = [], 1
    for extent in reversed(shape):
        strides.append(current)
        current *= extent
    return Layout(shape, tuple(reversed(strides)))


def coalesce(layout: Layout, profile: IntTuple | None = None) -> Layout:
    """Post-conditions: result(i) == layout(i) for 0 <= i < size; same size; flat; no leaf of extent 1 unless it is the only one; no two
    neighbors (s0:d0, s1:d1) with d1 == s0 * d0.

    With a tuple as `profile` every mode is coalesced for itself, to the depth of the profile; modes past its end stay as they are.
    Source: CuTe layout algebra, "Coalesce".  Raises `AlgebraError` when the profile has more modes than the layout.
    """
    if isinstance(profile, tuple):
        if len(profile) > layout.rank:
            raise AlgebraError(f"profile {profile}: has more modes than {layout}")
        modes = layout.modes
        return join(*(coalesce(m, p) for m, p in zip(modes, profile, strict=False)), *modes[len(profile) :])
    return from_leaves(layout.leaves)


def from_leaves(leaves: list[tuple[int, int]]) -> Layout:
    """The coalesced layout of (extent, stride) leaves; 1:0 for none."""
    merged: list[tuple[int, int]] = []
    for extent, stride in leaves:
        if extent == 1:
            continue
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * extent, merged[-1][1])
        else:
            merged.append((extent, stride))
    if not merged:
        return Layout(1, 0)
    if len(merged) == 1:
        return Layout(*merged[0])
    return Layout(tuple(n for n, _ in merged), tuple(d for _, d in merged))


def same_function(a: Layout, b: Layout) -> bool:
    """Whether both have the same size and map every index alike.  Exact: decided on the coalesced forms, which are unique."""
    return coalesce(a) == coalesce(b)


@dataclass(frozen=True)
class ComposedLayout:
    """outer(offset + inner(coordinate)).  `outer` is a swizzle, a layout, or any function of an index.

    Source: CuTe, `ComposedLayout`.  `composition` with a tiler acts on `inner`, so tiles of a swizzled layout are swizzled layouts.
    """

    outer: Callable[[Int], Int]
    offset: int
    inner: Layout

    def __call__(self, *coordinate: Coordinate) -> Int:
        index = self.inner(*coordinate)
        return self.outer(index + self.offset if self.offset else index)

    @property
    def shape(self) -> IntTuple:
        return self.inner.shape

    @property
    def size(self) -> int:
        return self.inner.size

    @property
    def cosize(self) -> int:
        """One more than the largest index; enumerates."""
        return 1 + max(self.indices())

    def indices(self) -> list[int]:
        """The image of 0, 1, ... size - 1."""
        return [self.outer(self.offset + index) for index in self.inner.indices()]

    @property
    def injective(self) -> bool:
        """No index is hit twice; enumerates."""
        return len(set(self.indices())) == self.size

    def __str__(self) -> str:
        return f"{self.outer} o {self.offset} o {self.inner}"


def swizzled(swizzle: Callable[[Int], Int], layout: Layout, offset: int = 0) -> ComposedLayout:
    """The swizzle after the layout, whose index 0 lies at `offset` of the swizzled buffer."""
    return ComposedLayout(swizzle, offset, layout)
