"""Left and right inverses of layouts."""

from __future__ import annotations

from .coalesce import from_leaves
from .complement import complement
from .int_tuple import AlgebraError
from .layout import Layout, join


def right_inverse(layout: Layout) -> Layout:
    """R with layout(R(i)) == i for 0 <= i < size(R); R ends where the leaves, sorted by stride, leave the first gap.

    For a bijection of [0, size) it is the inverse function.
    Source: CuTe layout algebra, `right_inverse`.
    """
    before, starts = 1, []
    for extent, stride in layout.leaves:
        starts.append((stride, extent, before))
        before *= extent
    leaves: list[tuple[int, int]] = []
    reached = 1
    for stride, extent, start in sorted(s for s in starts if s[1] > 1):
        if stride != reached:
            break
        leaves.append((extent, start))
        reached = extent * stride
    return from_leaves(leaves)


def left_inverse(layout: Layout) -> Layout:
    """L with L(layout(i)) == i for 0 <= i < size(layout).

    Source: CuTe layout algebra, `left_inverse`.  Raises `AlgebraError` unless the leaves nest (no stride 0, gaps that form a layout).
    """
    if any(stride == 0 for extent, stride in layout.leaves if extent > 1):
        raise AlgebraError(f"left inverse of {layout}: stride 0 maps several coordinates to one index")
    return right_inverse(join(layout, complement(layout)))
