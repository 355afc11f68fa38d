"""What the K loop of a compiled SM90 kernel consists of, read from its SASS."""

from __future__ import annotations

from dataclasses import dataclass

from megamoe_dsl.inspect import Instruction, Listing
from megamoe_dsl.kernels.moe.sm90.measures import WGMMAS_PER_K_BLOCK
from megamoe_dsl.sass.flow import Flow


@dataclass(frozen=True)
class MainLoop:
    """Static instructions of one K block: all, wgmmas, those of them that add to their accumulator, and scalar FP32 FMAs."""

    instructions: int
    wgmmas: int
    accumulating: int
    fmas: int

    @classmethod
    def of(cls, listing: Listing) -> MainLoop:
        """The smallest loop with a K block's wgmmas.  Raises LookupError when there is none."""
        for loop in Flow(listing).loops:
            body = [listing.instructions[i] for i in loop.body]
            wgmmas = [one for one in body if one.operation == "QGMMA"]
            if len(wgmmas) >= WGMMAS_PER_K_BLOCK:
                fmas = sum(one.operation == "FFMA" for one in body)
                return cls(len(body), len(wgmmas), sum(map(accumulates, wgmmas)), fmas)
        raise LookupError(f"no loop with {WGMMAS_PER_K_BLOCK} QGMMA")


def accumulates(wgmma: Instruction) -> bool:
    """Whether the result goes where the addend came from; the addend of a first step is RZ."""
    result, _, addend = (part.strip() for part in wgmma.operands.split(",")[:3])
    return result == addend
