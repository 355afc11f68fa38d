"""A layout followed by any function of its index, such as a swizzle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..arith import Int
from .int_tuple import Coordinate, IntTuple
from .layout import Layout


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
