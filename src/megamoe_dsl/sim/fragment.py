"""Lanes of one warp at one program counter, and what a handler answers when its instruction did not simply complete."""

from __future__ import annotations

from collections.abc import Callable

from .lanes import Mask


class Outcome:
    """One of BLOCK, PARK, YIELD and EXIT."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


BLOCK = Outcome("BLOCK")  # not executed: try again later (the same lanes, the same instruction, with lanes that come to it meanwhile)
PARK = Outcome("PARK")  # the same, but these lanes have arrived somewhere: those that come to it meanwhile stay apart
YIELD = Outcome("YIELD")  # executed, but it only polled: let others run before going on
EXIT = Outcome("EXIT")  # these lanes leave the kernel


ALL_LANES = b"\x01" * 32


class Fragment:
    """Lanes at one program counter; `mask` is None for all 32, `bits` are its bytes."""

    __slots__ = ("bits", "mask", "parked", "pc", "polled", "why")

    def __init__(self, pc: int, mask: Mask) -> None:
        self.pc = pc
        self.set(mask)
        self.polled = self.parked = False
        self.why: str | Callable[[], str] | None = None  # what a blocked fragment waits on

    def set(self, mask: Mask) -> None:
        bits = ALL_LANES if mask is None else mask.tobytes()
        self.mask, self.bits = (None, ALL_LANES) if bits == ALL_LANES else (mask, bits)
