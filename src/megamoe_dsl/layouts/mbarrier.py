"""One row of a kernel's barrier table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MBarrier:
    """`count` barriers with the same role in every CTA; with `leader_only` only those of a cluster's first CTA are used, for all of its
    CTAs.

    `arrivals` is what completes a phase besides transaction bytes; `who` arrives, `transaction` says what bytes are counted, `waits` who
    waits.  Initialization, SMEM size, documentation and checks come from the rows.
    """

    name: str
    count: int
    arrivals: int
    who: str
    transaction: str
    waits: str
    leader_only: bool = False
