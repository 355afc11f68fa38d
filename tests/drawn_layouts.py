"""Hypothesis strategies for layouts.  Every strategy shrinks towards its least interesting value, named in its docstring."""

from __future__ import annotations

from hypothesis import strategies as st

from megamoe_dsl.layouts.layout import IntTuple, Layout, unflatten

LAYOUT_KINDS = ("any", "nested", "bijective")


@st.composite
def layouts(
    draw: st.DrawFn, kind: str = "any", *, max_size: int = 128, extents: tuple[int, ...] = (1, 2, 3, 4, 6, 8), flat: bool = False
) -> Layout:
    """Layouts of up to five leaves and two levels of nesting, with at most `max_size` coordinates.

    any        strides of 0 to 64, so indices may coincide
    nested     injective: leaves in any order, each stride a multiple of what the smaller leaves span (complement and left inverse exist)
    bijective  nested without gaps: a permutation of [0, size)

    `extents` are the leaf extents to draw from; powers of two make every composition defined.  `flat` leaves out the nesting.
    Shrinks to 1:0 (any) or 1:1, then towards fewer, smaller, column-major leaves.  Raises ValueError for an unknown kind.
    """
    if kind not in LAYOUT_KINDS:
        raise ValueError(f"kind = {kind!r}: must be one of {', '.join(LAYOUT_KINDS)}")
    leaves: list[int] = []
    room = max_size
    for _ in range(draw(st.integers(1, 5))):
        leaves.append(draw(st.sampled_from([n for n in sorted(extents) if n <= room])))
        room //= leaves[-1]
    strides = [0] * len(leaves)
    if kind == "any":
        strides = [draw(st.integers(0, 64)) for _ in leaves]
    else:
        span = 1
        for leaf in draw(st.permutations(range(len(leaves)))):
            strides[leaf] = span * (draw(st.sampled_from(sorted({1, *extents}))) if kind == "nested" else 1)
            span = strides[leaf] * leaves[leaf]
    profile = tuple(range(len(leaves))) if flat else draw(_profiles(len(leaves)))
    return Layout(unflatten(leaves, profile), unflatten(strides, profile))


@st.composite
def _profiles(draw: st.DrawFn, leaves: int, depth: int = 2) -> IntTuple:
    """Ways to nest a number of leaves.  Shrinks to no nesting at all (a bare leaf where there is one)."""
    if leaves == 1:
        return 0
    parts: list[IntTuple] = []
    while leaves:
        width = draw(st.integers(1, leaves if parts else leaves - 1)) if depth else 1
        parts.append(draw(_profiles(width, depth - 1)))
        leaves -= width
    return tuple(parts)
