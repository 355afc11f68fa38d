"""Composition: one layout read through another."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, overload

from .int_tuple import AlgebraError
from .layout import Layout, coalesce, from_leaves, join

if TYPE_CHECKING:
    from .layout import ComposedLayout


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
    from .layout import ComposedLayout

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


def complement(layout: Layout, cosize: int = 1) -> Layout:
    """The layout R that fills the gaps of `layout` and repeats it until `cosize` indices are covered.

    Post-conditions: join(layout, R) is injective where `layout` is; R's indices ascend; R(i) is in layout's image only for i = 0;
    join(layout, R) covers every index in [0, cosize) and has size ceil(cosize / period) * period, where period is the extent times stride
    of layout's outermost leaf.
    Source: CuTe layout algebra, "Complement".  Leaves of stride 0 do not count.  Raises `AlgebraError` when the gaps form no layout: a
    stride is not a multiple of what the leaves below it span.
    """
    leaves: list[tuple[int, int]] = []
    current = 1
    for stride, extent in sorted((d, n) for n, d in layout.leaves if n > 1 and d > 0):
        if stride % current:
            raise AlgebraError(f"complement of {layout}: stride {stride} is not a multiple of {current}, which the smaller leaves span")
        leaves.append((stride // current, current))
        current = extent * stride
    leaves.append((-(-cosize // current), current))
    return from_leaves(leaves)


def logical_product(a: Layout, tiler: Tiler) -> Layout:
    """Mode 0 is A, mode 1 runs over its copies, placed in the order of B.  A tuple multiplies mode by mode.

    Post-conditions for a layout B: result(i, 0) == a(i); result(i, j) == a(i) + R(B(j)) with R = complement(a, size(a) * cosize(B)); copies
    do not overlap where a is injective.
    Source: CuTe layout algebra, "Product".  Raises `AlgebraError` where complement or composition are not defined.
    """
    if tiler is None:
        return a
    if isinstance(tiler, tuple):
        return by_mode(logical_product, a, tiler)
    tile = Layout(tiler) if isinstance(tiler, int) else tiler
    return join(a, composition(complement(a, a.size * tile.cosize), tile))


def logical_divide(a: Layout, tiler: Tiler) -> Layout:
    """Mode 0 runs inside a tile, mode 1 over tiles.  A tuple divides mode by mode: ((tile0, rest0), (tile1, rest1), ..).

    Post-conditions for a layout B: result(i, 0) == a(B(i)); result(i, j) == a(B(i) + R(j)) with R = complement(B, size(a)); where the
    tile divides a's size, the result is a's function with its domain permuted.
    Source: CuTe layout algebra, "Division".  Raises `AlgebraError` where complement or composition are not defined.
    """
    if tiler is None:
        return a
    if isinstance(tiler, tuple):
        return by_mode(logical_divide, a, tiler)
    tile = Layout(tiler) if isinstance(tiler, int) else tiler
    return composition(a, join(tile, complement(tile, a.size)))


def _sorted_leaves(layout: Layout) -> list[tuple[int, int, int]]:
    """(stride, extent, index of the domain at which the leaf steps) by ascending stride, then left to right; extents of 1 left out."""
    before, leaves = 1, []
    for extent, stride in layout.leaves:
        if extent > 1:
            leaves.append((stride, extent, before))
        before *= extent
    return sorted(leaves, key=lambda leaf: leaf[0])


def right_inverse(layout: Layout) -> Layout:
    """R with layout(R(i)) == i for 0 <= i < size(R); R ends where the leaves, sorted by stride, leave the first gap.

    For a bijection of [0, size) it is the inverse function.  Leaves that repeat indices are passed over; there are then other right
    inverses, and CuTe may give another.
    Source: CuTe layout algebra, `right_inverse`.
    """
    leaves: list[tuple[int, int]] = []
    reached = 1
    for stride, extent, start in _sorted_leaves(layout):
        if stride > reached:
            break
        if stride == reached:
            leaves.append((extent, start))
            reached = extent * stride
    return from_leaves(leaves)
