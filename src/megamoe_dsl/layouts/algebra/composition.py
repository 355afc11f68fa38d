"""Composition: one layout read through another."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, overload

from .coalesce import coalesce, from_leaves
from .int_tuple import AlgebraError
from .layout import Layout, join

if TYPE_CHECKING:
    from .composed import ComposedLayout

Tiler: TypeAlias = "Layout | int | tuple[Tiler, ...] | None"
"""What a by-mode operation takes: a layout, an int n for n:1, None for "leave this mode", or a tuple with one entry per mode."""


@overload
def composition(a: Layout, b: Tiler) -> Layout: ...
@overload
def composition(a: ComposedLayout, b: Tiler) -> ComposedLayout: ...
def composition(a: Layout | ComposedLayout, b: Tiler) -> Layout | ComposedLayout:
    """A after B.  Post-conditions for a layout B: result(c) == a(b(c)) for every c of B's domain; the result's shape refines B's.

    A tuple of tilers acts on A mode by mode: result(c0, c1, ..) == a(b0(c0), b1(c1), ..); modes of A past its end stay as they are.
    B may reach beyond A's size: A's last leaf continues, as it does when A is called.
    Source: CuTe layout algebra, "Composition".  Raises `AlgebraError` where a stride or an extent of B does not divide along A's leaves,
    and where modes of B together step past the end of one of A's leaves (then A after B is no layout; CuTe does not check this).
    """
    from .composed import ComposedLayout

    if isinstance(a, ComposedLayout):
        return ComposedLayout(a.outer, a.offset, composition(a.inner, b))
    if b is None:
        return a
    if isinstance(b, tuple):
        return by_mode(composition, a, b)
    tiler = Layout(b) if isinstance(b, int) else b
    return _Digits(_continued(a), f"{a} after {tiler}").through(tiler)


def by_mode(operation: Callable[[Layout, Tiler], Layout], a: Layout, tilers: tuple[Tiler, ...]) -> Layout:
    """`operation` on each mode with its tiler.  Raises `AlgebraError` when there are more tilers than modes."""
    if len(tilers) > a.rank:
        raise AlgebraError(f"{len(tilers)} tilers for {a}, which has {a.rank} modes")
    modes = a.modes
    return join(*(operation(m, t) for m, t in zip(modes, tilers, strict=False)), *modes[len(tilers) :])


def _continued(a: Layout) -> list[tuple[int, int]]:
    """A's leaves, coalesced, except that the stride of the last one says how A continues beyond its size, even from an extent of 1."""
    leaves = [leaf for leaf in coalesce(a).leaves if leaf[0] > 1]
    last = a.shape
    while isinstance(last, tuple) and last:
        last = last[-1]
    if last == ():  # takes what is left of an index, and gives 0 for it
        return [*leaves, (1, 0)]
    extent, stride = a.leaves[-1]
    if extent == 1 and not (leaves and leaves[-1][0] * leaves[-1][1] == stride):
        leaves.append((1, stride))
    return leaves


class _Digits:
    """The leaves of A as the digits of its domain, and how far the modes of B have filled each.

    A(b0 + b1) is A(b0) + A(b1) only while no digit overflows into the next.
    """

    def __init__(self, leaves: list[tuple[int, int]], what: str) -> None:
        self.leaves, self.what = leaves, what
        self.filled = [0] * len(leaves)

    def _take(self, digit: int, extent: int, stride: int) -> tuple[int, int]:
        length, step = self.leaves[digit]
        self.filled[digit] += (extent - 1) * stride
        if digit < len(self.leaves) - 1 and self.filled[digit] >= length:
            raise AlgebraError(f"{self.what}: together the modes step past the end of a mode of {length}")
        return extent, stride * step

    def pick(self, extent: int, stride: int) -> list[tuple[int, int]]:
        """Leaves of c -> A(stride * c) for c < extent: each digit is skipped, cut at its stride-th part, or taken whole."""
        picked: list[tuple[int, int]] = []
        for digit, (length, _) in enumerate(self.leaves[:-1]):
            if extent == 1:
                break
            if stride % length == 0:
                stride //= length
            elif (extent - 1) * stride < length:
                picked.append(self._take(digit, extent, stride))
                extent = 1
            elif length % stride == 0 and extent % (length // stride) == 0:
                picked.append(self._take(digit, length // stride, stride))
                extent //= length // stride
                stride = 1
            else:
                raise AlgebraError(f"{self.what}: a step of {stride} over {extent} places does not divide a mode of {length}")
        if extent > 1:
            picked.append(self._take(len(self.leaves) - 1, extent, stride))
        return picked

    def through(self, b: Layout) -> Layout:
        if isinstance(b.shape, tuple):
            return join(*(self.through(mode) for mode in b.modes))
        assert isinstance(b.stride, int)
        return from_leaves(self.pick(b.shape, b.stride)) if b.stride else Layout(b.shape, 0)


def identity(size: int) -> Layout:
    return Layout(size, 1)
