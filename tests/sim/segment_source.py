"""A segment as Python source, which `lane_program` is compared with.

For `add f3, f1, f2; add f5, f4, f2; mul f6, f3, f5` the source is, were two enough to be worth it,

    r1 = R[1]; r4 = R[4]; r2 = R[2]
    b0 = concatenate((r1, r4)) + concatenate((r2, r2)); v0, v1 = b0.reshape(2, -1)
    v2 = v0 * v1
    R[3] = v0; R[5] = v1; R[6] = v2
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megamoe_dsl.sim.segment import Group, LaneOperation, Segment


def source_of(segment: Segment, masked: bool) -> list[str]:
    """Lines that read `R`, compute, and write `R`; `m` is the mask."""
    kept = segment.kept(masked)
    used, lines = {name for one in kept for name in one[1:] if name is not None}, list[str]()
    groups = list(segment.groups())
    joined = {tuple(one.name for one in group): f"b{k}" for k, group in enumerate(groups) if len(group) > 1}
    for group in reversed(groups):  # backwards: what is used later on is then known
        lines = _lines(segment, group, joined, used) + lines
    out = [f" {name} = R[{i}]" for i, name in segment._read.items() if name in used]
    out += lines
    return out + [f" R[{i}] = {name if before is None else f'where(m, {name}, {before})'}" for i, name, before in kept]


def _lines(segment: Segment, group: Group, joined: dict[tuple[str, ...], str], used: set[str]) -> list[str]:
    """The source of a group. `joined` names the results that are together, `used` what later lines use and, from now on, these."""
    names = tuple(one.name for one in group)
    whole, apart = joined.get(names), not used.isdisjoint(names)
    if whole is None:
        used.update(group[0].operands)
        return [f" {names[0]} = {text_of(group[0], group[0].operands)}"] if apart else []
    if not apart and whole not in used:
        return []
    columns = [_together(segment, column, joined, used) for column in zip(*(one.operands for one in group), strict=True)]
    lines = [f" {whole} = {text_of(group[0], columns)}"]
    return [*lines, f" {', '.join(names)} = {whole}.reshape({len(names)}, -1)"] if apart else lines


def text_of(one: LaneOperation, operands: Sequence[str]) -> str:
    return one.template[0] + "".join(o + gap for o, gap in zip(operands, one.template[1:], strict=True))


def _together(segment: Segment, names: tuple[str, ...], joined: dict[tuple[str, ...], str], used: set[str]) -> str:
    """The source of several values one after the other."""
    if whole := joined.get(names):
        used.add(whole)
        return whole
    if all(name in segment.binder.names for name in names):
        return segment.binder.name(np.concatenate([segment.binder.names[name] for name in names]))
    used.update(names)
    return f"concatenate(({', '.join(names)}))"
