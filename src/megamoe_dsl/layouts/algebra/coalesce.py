"""Coalesce: the same function with as few modes as possible."""

from __future__ import annotations

from .int_tuple import AlgebraError, IntTuple
from .layout import Layout, join


def coalesce(layout: Layout, profile: IntTuple | None = None) -> Layout:
    """Post-conditions: result(i) == layout(i) for 0 <= i < size; same size; flat; no leaf of extent 1 unless it is the only one; no two
    neighbors (s0:d0, s1:d1) with d1 == s0 * d0.

    With a tuple as `profile` every mode is coalesced for itself, to the depth of the profile; modes past its end stay as they are.
    Source: CuTe layout algebra, "Coalesce".  Raises `AlgebraError` when the profile has more modes than the layout.
    """
    if isinstance(profile, tuple):
        if len(profile) > layout.rank:
            raise AlgebraError(f"profile {profile}: has more modes than {layout}")
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
