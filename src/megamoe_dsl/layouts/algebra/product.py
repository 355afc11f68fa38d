"""Product: a layout repeated as another layout says."""

from __future__ import annotations

from .complement import complement
from .composition import Tiler, by_mode, composition
from .divide import unzip
from .layout import Layout, join


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


def zipped_product(a: Layout, tiler: Tiler) -> Layout:
    """`logical_product` with the A modes gathered first: ((a0, a1, ..), (copies of a0, copies of a1, ..)).

    Post-condition: result((i0, i1), (j0, j1)) == logical_product(a, tiler)((i0, j0), (i1, j1)).
    """
    return unzip(logical_product, a, tiler)
