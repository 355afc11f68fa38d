"""Divide: a layout split into tiles, and the tiles' positions."""

from __future__ import annotations

from collections.abc import Callable

from .complement import complement
from .composition import Tiler, by_mode, composition
from .layout import Layout, join


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


def zipped_divide(a: Layout, tiler: Tiler) -> Layout:
    """`logical_divide` with the tile modes gathered first: ((tile0, tile1, ..), (rest0, rest1, .., modes without a tiler)).

    Post-condition: result((i0, i1), (j0, j1)) == logical_divide(a, tiler)((i0, j0), (i1, j1)).
    """
    return unzip(logical_divide, a, tiler)


def unzip(split: Callable[[Layout, Tiler], Layout], a: Layout, tiler: Tiler) -> Layout:
    """`split` mode by mode, which gives rank-2 modes; first halves and second halves gathered into two modes."""
    if tiler is None:
        return join(Layout(1, 0), a)
    if not isinstance(tiler, tuple):
        return split(a, tiler)
    halves = by_mode(lambda mode, t: unzip(split, mode, t), a, tiler).modes
    pairs, rest = halves[: len(tiler)], halves[len(tiler) :]
    return join(join(*(p[0] for p in pairs)), join(*(p[1] for p in pairs), *rest))
