"""One row of a kernel's barrier table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MBarrier:
    """`count` barriers with the same role in every CTA (`leader_only`: used in one CTA of a cluster, whose counts span all).

    `arrivals` is what completes a phase besides transaction bytes; `who` arrives, `transaction` says what bytes are counted, `waits` who
    waits.  Initialisation, SMEM size, documentation and checks come from the rows.
    """

    name: str
    count: int
    arrivals: int
    who: str
    transaction: str
    waits: str
    leader_only: bool = False
