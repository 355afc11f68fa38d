"""Loads that lanes may issue after another lane has given their stage back: PTX leaves that open, machine code does not."""

from __future__ import annotations

import re

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.sass.flow import Flow
from megamoe_dsl.sass.listing import Listing
from megamoe_dsl.sass.overtaken_loads import GIVES_AWAY, OvertakenLoad, loads_of, pairs_of, pending_loads

MMA = "GMMA"
AS_ONE = re.compile(rf"\w*{MMA}|WARPGROUP")
"""What all lanes of a warp issue together."""


def assert_converged(artifact: Artifact) -> None:
    """No `unconverged_loads`; a kernel without wgmma, which has none, is not disassembled."""
    assert "wgmma.mma_async" not in artifact.ptx or unconverged_loads(artifact.listing) == []


def unconverged_loads(listing: Listing) -> list[OvertakenLoad]:
    """In loops of MMAs, loads that some lane may not have issued when another arrives on a barrier.

    One lane of a math warp gives a stage back for all.  A scoreboard counts the loads that have been issued; lanes that have parted issue
    theirs later.  So every way from the load to the arrival must pass an instruction that a warp issues as one: an MMA (PTX ISA,
    "wgmma.mma_async", `.sync.aligned`), or what goes with it.
    """
    flow, code = Flow(listing), listing.instructions
    loops = [loop for loop in flow.loops if any(code[at].operation.endswith(MMA) for at in loop.body)]
    pending = pending_loads(flow, loads_of(listing), lambda load, at: bool(AS_ONE.fullmatch(code[at].operation)))
    arrivals = {at for loop in loops for at in loop.body if code[at].opcode.startswith(GIVES_AWAY[0])}
    within = {
        at: frozenset().union(*(loop.body for loop in loops if at in loop.body and not any(other.body < loop.body for other in loops)))
        for at in arrivals
    }
    return pairs_of(listing, {at: pending.get(at, frozenset()) & within[at] for at in arrivals}, sorted(arrivals))
