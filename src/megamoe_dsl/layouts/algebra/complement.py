"""Complement: the indices that a layout leaves out, as a layout."""

from __future__ import annotations

from .coalesce import from_leaves
from .int_tuple import AlgebraError
from .layout import Layout


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
