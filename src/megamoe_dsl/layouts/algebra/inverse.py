"""Left and right inverses of layouts."""

from __future__ import annotations

from itertools import zip_longest

from .coalesce import from_leaves
from .int_tuple import AlgebraError
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


def left_inverse(layout: Layout) -> Layout:
    """L with L(layout(i)) == i for 0 <= i < size(layout), decoded digit by digit; an index between digits rounds down.

    Source: CuTe layout algebra, `left_inverse`.  Raises `AlgebraError` unless the layout's indices are digits of a mixed radix: with the
    leaves sorted by stride, each stride is a multiple of the one before it, and at least as long as that leaf.
    """
    digits = _sorted_leaves(layout)
    decoded = [(digits[0][0], 0)] if digits else []
    for (stride, extent, start), following in zip_longest(digits, digits[1:]):
        if stride == 0:
            raise AlgebraError(f"left inverse of {layout}: stride 0 maps several coordinates to one index")
        if following is None:
            decoded.append((extent, start))
        elif following[0] % stride or following[0] < extent * stride:
            raise AlgebraError(f"left inverse of {layout}: stride {following[0]} does not continue {extent}:{stride}")
        else:
            decoded.append((following[0] // stride, start))
    return from_leaves(decoded)
