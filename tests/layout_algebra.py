"""CuTe's layout algebra in exact, pure Python: what tests derive the chip's orders with, to hold index expressions of kernels against.

    composition(a, b), complement(a, n)                 A after B; what A leaves out
    logical_divide(a, t), logical_product(a, t)         tiles of A; A repeated
    right_inverse(a), coalesce(a)
    swizzled(swizzle, a)                                a swizzle after a layout

Source: CuTe layout algebra (NVIDIA/cutlass, media/docs/cpp/cute/02_layout_algebra.md); every function states its post-condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product as ranges
from typing import TypeAlias, overload

from megamoe_dsl.layouts.arith import Int
from megamoe_dsl.layouts.layout import Coordinate, IntTuple, Layout, LayoutError, flatten, unflatten


def coordinates(shape: IntTuple) -> Iterator[Coordinate]:
    """All natural coordinates in the order of their index: the first leaf runs fastest."""
    for leaves in ranges(*(range(n) for n in reversed(flatten(shape)))):
        yield unflatten(reversed(leaves), shape)


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
    Source: CuTe layout algebra, "Coalesce".  Raises `LayoutError` when the profile has more modes than the layout.
    """
    if isinstance(profile, tuple):
        if len(profile) > layout.rank:
            raise LayoutError(f"profile {profile}: has more modes than {layout}")
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
    Source: CuTe layout algebra, "Composition".  Raises `LayoutError` where a stride or an extent of B does not divide along A's leaves,
    and where modes of B together step past the end of one of A's leaves (then A after B is no layout; CuTe does not check this).
    """
    if isinstance(a, ComposedLayout):
        return ComposedLayout(a.outer, a.offset, composition(a.inner, b))
    if b is None:
        return a
    if isinstance(b, tuple):
        return by_mode(composition, a, b)
    tiler = Layout(b) if isinstance(b, int) else b
    return _Digits(_continued(a), f"{a} after {tiler}").through(tiler)


def by_mode(operation: Callable[[Layout, Tiler], Layout], a: Layout, tilers: tuple[Tiler, ...]) -> Layout:
    """`operation` on each mode with its tiler.  Raises `LayoutError` when there are more tilers than modes."""
    if len(tilers) > a.rank:
        raise LayoutError(f"{len(tilers)} tilers for {a}, which has {a.rank} modes")
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
            raise LayoutError(f"{self.what}: together the modes step past the end of a mode of {length}")
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
                raise LayoutError(f"{self.what}: a step of {stride} over {extent} places does not divide a mode of {length}")
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
    Source: CuTe layout algebra, "Complement".  Leaves of stride 0 do not count.  Raises `LayoutError` when the gaps form no layout: a
    stride is not a multiple of what the leaves below it span.
    """
    leaves: list[tuple[int, int]] = []
    current = 1
    for stride, extent in sorted((d, n) for n, d in layout.leaves if n > 1 and d > 0):
        if stride % current:
            raise LayoutError(f"complement of {layout}: stride {stride} is not a multiple of {current}, which the smaller leaves span")
        leaves.append((stride // current, current))
        current = extent * stride
    leaves.append((-(-cosize // current), current))
    return from_leaves(leaves)


def logical_product(a: Layout, tiler: Tiler) -> Layout:
    """Mode 0 is A, mode 1 runs over its copies, placed in the order of B.  A tuple multiplies mode by mode.

    Post-conditions for a layout B: result(i, 0) == a(i); result(i, j) == a(i) + R(B(j)) with R = complement(a, size(a) * cosize(B)); copies
    do not overlap where a is injective.
    Source: CuTe layout algebra, "Product".  Raises `LayoutError` where complement or composition are not defined.
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
    Source: CuTe layout algebra, "Division".  Raises `LayoutError` where complement or composition are not defined.
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
