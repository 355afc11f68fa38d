"""Loads from shared memory that an arrival on a barrier, or a copy into shared memory, does not wait for.

A reader arrives to say that its bytes may be overwritten.  The unit that counts arrivals is not the one that loads, so an arrival can pass
a load under way; what then comes back may be what TMA wrote afterwards (docs/lab/hopper.md).  Only an instruction that waits for the load's
scoreboard puts an end to that, and where it stands is the assembler's choice: PTX and the simulator, which loads at once, show nothing.

Bits 105 to 125 of an instruction's 128 are for the issuer: among them the scoreboard that is set until the result has come (110 to 112, 7
for none) and the mask of scoreboards that it waits for (116 to 121).  Source: Jia et al., "Dissecting the NVIDIA Volta GPU Architecture
via Microbenchmarking" (arXiv 1804.06826), section 2.1; SM90 and SM100 have kept it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .flow import Flow
from .listing import Instruction, Listing

INSTRUCTION_BYTES = 16
NO_SCOREBOARD = 7
LOADS = ("LDS", "LDSM", "ULDS")
GIVES_AWAY = ("SYNCS.ARRIVE", "BAR.", "UBLKCP.S", "UTMALDG")


@dataclass(frozen=True)
class OvertakenLoad:
    """`load` may still be under way when `by` is issued."""

    load: Instruction
    by: Instruction


def overtaken_loads(listing: Listing, code: bytes) -> list[OvertakenLoad]:
    """All overtaken loads of a kernel, by the address of the overtaking instruction; `code` is its text section."""
    words = [int.from_bytes(code[one.address : one.address + INSTRUCTION_BYTES], "little") for one in listing.instructions]
    sets, waits = [word >> 110 & 7 for word in words], [word >> 116 & 0x3F for word in words]
    loads = [at for at in loads_of(listing) if sets[at] != NO_SCOREBOARD]
    pending = pending_loads(Flow(listing), loads, lambda load, at: bool(waits[at] >> sets[load] & 1))
    return pairs_of(listing, pending, [at for at, one in enumerate(listing.instructions) if one.opcode.startswith(GIVES_AWAY)])


def loads_of(listing: Listing) -> list[int]:
    return [at for at, one in enumerate(listing.instructions) if one.operation in LOADS]


def pending_loads(flow: Flow, loads: list[int], ends: Callable[[int, int], bool]) -> dict[int, frozenset[int]]:
    """By reachable instruction, loads that some path leaves pending there; `ends(load, instruction)` says which complete one."""
    begins, pending, work = frozenset(loads), {0: frozenset[int]()}, [0]
    while work:
        at = work.pop()
        after = pending[at] | {at} if at in begins else pending[at]
        for following in flow.successors(at, diverged=True):
            still = frozenset(load for load in after if not ends(load, following))
            before = pending.get(following)
            if before is None or not still <= before:
                pending[following] = still if before is None else before | still
                work.append(following)
    return pending


def pairs_of(listing: Listing, pending: Mapping[int, frozenset[int]], arrivals: list[int]) -> list[OvertakenLoad]:
    """Every arrival with each load that is pending there."""
    code = listing.instructions
    return [OvertakenLoad(code[load], code[at]) for at in arrivals for load in sorted(pending.get(at, ()))]
