"""E2M1 weights to E4M3 in registers: magnitudes by table, signs by mask (hardware/packed_tile.py has the order of bits)."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32

from ..hardware.packed_tile import ENTRY_BYTES, HIGHEST, SHIFT_MASK, SHIFTS
from . import cast
from .memory import load_shared_v2, store_shared_v2
from .ptx import emit_to

SELECTORS = 0x77777777
SIGNS = 0x80808080
UNSHIFTED = (0x6C686000, 0x7C787470)
"""The table's entry of shift 0, magnitudes 0 to 1.5 and 2 to 6."""
LOW_MAGNITUDES = (0.0, 0.5, 1.0, 1.5)
HIGH_MAGNITUDES = (2.0, 3.0, 4.0, 6.0)


def decode(word: Any, entry: tuple[Any, Any]) -> tuple[Any, Any]:
    """Eight values of a word as two words of E4M3, by the table's entry: seven instructions."""
    selectors = word & Uint32(SELECTORS)
    first = _pick(entry, selectors) | (word & Uint32(SIGNS))
    second = _pick(entry, selectors >> 16) | ((word << 4) & Uint32(SIGNS))
    return first, second


def rows_of_shifts(shifts: Any) -> list[Any]:
    """A record's word of shifts, of its first row and of its second."""
    return [shifts & Uint32(SHIFT_MASK), ((shifts >> 4) | (shifts << 28)) & Uint32(SHIFT_MASK)]


def shifts_of_pair(first: Any, second: Any, row: Any, step: Any) -> Any:
    """Of two records' words of shifts those of row 0 or 1 in steps `step` and `step + 2` of K: the first word's are steps 0 and 2 of
    `normal_entry` and `entry_by_table`, the second's 1 and 3."""
    words = [emit_to(Uint32, "shf.r.wrap.b32 {}, {}, {}, {};", one, one, 4 * row) for one in (first, second)]
    return emit_to(Uint32, "prmt.b32 {}, {}, {}, {};", *words, 0x6240 + 0x1111 * step) & Uint32(SHIFT_MASK)


def entry_by_table(table: Any, shifts: Any, step: int) -> tuple[Any, Any]:
    """The entry of a row's step of K."""
    low, high = load_shared_v2(table + Int32(_shift(shifts, step)))
    return low, high


def normal_entry(shifts: Any, step: int) -> tuple[Any, Any]:
    """The same for shifts up to 11, computed: a step of the shift is one of every byte's exponent, but for the zero's."""
    shift, (low, high) = _shift(shifts, step), UNSHIFTED
    return Uint32(low) - shift * Uint32(0x01010100), Uint32(high) - shift * Uint32(0x01010101)


def _shift(shifts: Any, step: int) -> Any:
    """Eight times that of a step."""
    return emit_to(Uint32, "prmt.b32 {}, {}, 0, {};", shifts, 0x4440 + step)


def _pick(entry: tuple[Any, Any], selectors: Any) -> Any:
    return emit_to(Uint32, "prmt.b32 {}, {}, {}, {};", *entry, selectors)


@cute.jit
def store_table(table: Int32):
    """A warp writes the whole table."""
    lane = cute.arch.lane_idx()
    if lane < SHIFTS:
        store_entry(table, lane)


def store_entry(table: Any, shift: Any) -> None:
    """The table's entry of one shift, a lane's: the eight magnitudes times 2^(6 - shift)."""
    factor = emit_to(Float32, "mov.b32 {}, {};", (Int32(127 + HIGHEST) - shift) << 23)
    low, high = (cast.pack_e4m3(*(factor * Float32(value) for value in half)) for half in (LOW_MAGNITUDES, HIGH_MAGNITUDES))
    store_shared_v2(table + shift * ENTRY_BYTES, low, high)
