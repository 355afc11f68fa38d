"""Lanes of one warp at one program counter."""

from __future__ import annotations

from collections.abc import Callable

from .lanes import Mask

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
