"""Complement, divide and product: what a layout leaves out, a layout split into tiles, and a layout repeated."""

from __future__ import annotations

from .coalesce import from_leaves
from .composition import Tiler, by_mode, composition
from .int_tuple import AlgebraError
from .layout import Layout, join


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
