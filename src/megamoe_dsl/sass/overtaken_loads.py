"""Loads from shared memory that an arrival on a barrier, or a copy into shared memory, does not wait for.

A reader arrives to say that its bytes may be overwritten.  The unit that counts arrivals is not the one that loads, so an arrival can pass
a load under way; what then comes back may be what TMA wrote afterwards (docs/lab/hopper.md).  Only an instruction that waits for the load's
scoreboard puts an end to that, and where it stands is the assembler's choice: PTX and the simulator, which loads at once, show nothing.

Bits 105 to 125 of an instruction's 128 are for the issuer: among them the scoreboard that is set until the result has come (110 to 112, 7
for none) and the mask of scoreboards that it waits for (116 to 121).  Source: Jia et al., "Dissecting the NVIDIA Volta GPU Architecture
via Microbenchmarking" (arXiv 1804.06826), section 2.1; SM90 and SM100 have kept it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .flow import Flow
from .listing import Instruction, Listing

INSTRUCTION_BYTES = 16
NO_SCOREBOARD = 7
LOADS = ("LDS", "LDSM", "ULDS")
GIVES_AWAY = ("SYNCS.ARRIVE", "BAR.", "UBLKCP.S", "UTMALDG")


@dataclass(frozen=True)
class Scoreboards:
    """The scoreboards that an instruction waits for before it is issued, as a mask, and the one that is set until its result has come."""

    waits: int
    sets: int

    @classmethod
    def of(cls, code: bytes, address: int) -> Scoreboards:
        """Scoreboards of the instruction at an address: bits 116 to 121 and 110 to 112 of its 128."""
        word = int.from_bytes(code[address : address + INSTRUCTION_BYTES], "little")
        return cls(word >> 116 & 0x3F, word >> 110 & 7)

    def waits_for(self, other: Scoreboards) -> bool:
        """Whether this instruction waits for the result of the other."""
        return bool(self.waits >> other.sets & 1)


@dataclass(frozen=True)
class OvertakenLoad:
    """`load` may still be under way when `by` is issued."""

    load: Instruction
    by: Instruction


def overtaken_loads(listing: Listing, code: bytes) -> list[OvertakenLoad]:
    """All of a kernel, by the address of what overtakes; `code` is its text section."""
    flow, instructions = Flow(listing), listing.instructions
    boards = [Scoreboards.of(code, one.address) for one in instructions]
    under_way: dict[int, frozenset[int]] = {0: frozenset()}  # what may be when an instruction has waited
    work = [0]
    while work:
        at = work.pop()
        after = under_way[at]
        if instructions[at].operation in LOADS and boards[at].sets != NO_SCOREBOARD:
            after |= {at}
        for following in flow.successors(at, diverged=True):
            still = frozenset(load for load in after if not boards[following].waits_for(boards[load]))
            before = under_way.get(following)
            if before is None or not still <= before:
                under_way[following] = still if before is None else before | still
                work.append(following)
    return [
        OvertakenLoad(instructions[load], one)
        for at, one in enumerate(instructions)
        if one.opcode.startswith(GIVES_AWAY)
        for load in sorted(under_way.get(at, ()))
    ]
