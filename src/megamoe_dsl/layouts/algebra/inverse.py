"""Left and right inverses of layouts."""

from __future__ import annotations

from .coalesce import from_leaves
from .layout import Layout


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
