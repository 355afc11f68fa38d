"""Race findings of another project's kernel, grouped by what is wrong and where."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from megamoe_dsl.sim.report import Finding


def place_of(where: str, offsets: Mapping[str, int]) -> str:
    """The buffer that a finding is in: a part of the symmetric buffer by its offset, else the kind of memory."""
    if found := re.search(r"sym@rank\d+\+(\d+)", where):
        below = [name for name, offset in offsets.items() if offset <= int(found[1])]
        return below[-1] if below else "workspace"
    if found := re.search(r"(?:flag )?([\w ]+)@rank\d+\+", where):
        return found[1].strip()
    return "shared memory" if "smem" in where else where


def grouped(findings: Iterable[Finding], offsets: Mapping[str, int]) -> list[dict[str, Any]]:
    """Findings of one kind in one place between the same source lines together: how many pairs of PTX lines, how many meetings.

    `offsets` of the symmetric buffer's parts, ascending.
    """
    groups: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for one in findings:
        key = (one.kind, place_of(one.where, offsets), one.first_source, one.second_source)
        named = dict(zip(("kind", "place", "first", "second"), key, strict=True))
        group = groups.setdefault(key, {**named, "pairs": 0, "count": 0})
        group["pairs"] += 1
        group["count"] += one.count
    return list(groups.values())
