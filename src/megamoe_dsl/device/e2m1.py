"""E2M1 weights to E4M3 in registers: magnitudes by table, signs by mask (hardware/packed_tile.py has the order of bits)."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32, Uint32

from ..hardware.packed_tile import ENTRY_BYTES, HIGHEST
from . import cast
from .memory import store_shared_v2
from .ptx import emit_to

SELECTORS = 0x77777777
SIGNS = 0x80808080
LOW_MAGNITUDES = (0.0, 0.5, 1.0, 1.5)
HIGH_MAGNITUDES = (2.0, 3.0, 4.0, 6.0)


def decode(word: Any, entry: tuple[Any, Any]) -> tuple[Any, Any]:
    """Eight values of a word as two words of E4M3, by the table's entry: seven instructions."""
    selectors = word & Uint32(SELECTORS)
    first = _pick(entry, selectors) | (word & Uint32(SIGNS))
    second = _pick(entry, selectors >> 16) | ((word << 4) & Uint32(SIGNS))
    return first, second


def _pick(entry: tuple[Any, Any], selectors: Any) -> Any:
    return emit_to(Uint32, "prmt.b32 {}, {}, {}, {};", *entry, selectors)


def store_entry(table: Any, shift: Any) -> None:
    """The table's entry of one shift, a lane's: the eight magnitudes times 2^(6 - shift)."""
    factor = emit_to(Float32, "mov.b32 {}, {};", (Int32(127 + HIGHEST) - shift) << 23)
    low, high = (cast.pack_e4m3(*(factor * Float32(value) for value in half)) for half in (LOW_MAGNITUDES, HIGH_MAGNITUDES))
    store_shared_v2(table + shift * ENTRY_BYTES, low, high)
