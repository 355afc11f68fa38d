"""E2M1 weights to E4M3 in registers: magnitudes by table, signs by mask (hardware/packed_tile.py has the order of bits)."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32

from ..hardware.packed_tile import ENTRY_BYTES, HIGHEST, SHIFT_MASK, SHIFTS
from ..layouts.arith import select
from . import cast
from .memory import load_shared_v2, store_shared_v2
from .ptx import emit_to
from .warp import shuffle_xor

SELECTORS = 0x77777777
SIGNS = 0x80808080
UNSHIFTED = (0x6C686000, 0x7C787470)  # the table's entry of shift 0, magnitudes 0 to 1.5 and 2 to 6
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
    """Shifts of row 0 or 1 in K steps `step` and `step + 2`, from two records' words: for `normal_entry` and `entry_by_table` the first
    record's are steps 0 and 2, the second's 1 and 3."""
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
    """Eight times the shift of one K step."""
    return emit_to(Uint32, "prmt.b32 {}, {}, 0, {};", shifts, 0x4440 + step)


def _pick(entry: tuple[Any, Any], selectors: Any) -> Any:
    return emit_to(Uint32, "prmt.b32 {}, {}, {}, {};", *entry, selectors)


@cute.jit
def store_table(table: Int32):
    """A warp writes the whole table, a lane the entry of one shift: the eight magnitudes times 2^(6 - shift)."""
    lane = cute.arch.lane_idx()
    if lane < SHIFTS:
        factor = cast.f32_of_bits((Int32(127 + HIGHEST) - lane) << 23)
        low, high = (cast.pack_e4m3(*[factor * Float32(value) for value in half]) for half in (LOW_MAGNITUDES, HIGH_MAGNITUDES))
        store_shared_v2(table + lane * ENTRY_BYTES, low, high)


LOW = 0x0F0F0F0F  # the lower nibble of every byte
HIGH = 0xF0F0F0F0


def gather_rows(first: Any, second: Any, lane: Any) -> tuple[Any, Any]:
    """Transposes tensor-memory fragments of E2M1, which stmatrix cannot: 16 channels of one token of 32, lowest in the lowest nibble, as
    two words.  In a thread of row r = lane / 4 and column j = lane % 4, byte 2 g + q of the words, `first` for tokens 0 to 15, has
    channel r of token 8 g + 2 j + q in its low nibble and channel r + 8 in its high one.  The token that a lane ends with:
    `epilogue_tile.packed_token`.
    """
    # Rows r and r + 1 have the two nibbles of a byte.  The even row takes the first word's tokens, the odd row the second's.
    odd = (lane & 4) != 0
    theirs = shuffle_xor(select(odd, first, second), 4)
    even_row, odd_row = select(odd, theirs, first), select(odd, second, theirs)
    low = (even_row & Uint32(LOW)) | ((odd_row << 4) & Uint32(HIGH))
    high = ((even_row >> 4) & Uint32(LOW)) | (odd_row & Uint32(HIGH))
    # Both words now have a byte for each of four tokens, and four lanes have the four bytes of a token: a transpose of 4 x 4 bytes.
    low, high = _exchange(low, high, lane, 16, (0x7632, 0x5410), (0x5410, 0x3254), (0x7610, 0x3276))
    return _exchange(low, high, lane, 8, (0x7531, 0x6420), (0x5240, 0x3514), (0x7260, 0x3716))


def _exchange(
    low: Any, high: Any, lane: Any, mask: int, sent: tuple[int, int], into_low: tuple[int, int], into_high: tuple[int, int]
) -> tuple[Any, Any]:
    """Half of both words for half of both words of the lane at distance `mask`.  Selectors of bytes (PTX ISA, prmt), for lanes with that
    bit clear and set: what is sent, out of both words, and what becomes of each word, out of itself and what is received."""
    upper = (lane & mask) != 0

    def pick(a: Any, b: Any, selectors: tuple[int, int]) -> Any:
        clear, set_ = selectors
        return emit_to(Uint32, "prmt.b32 {}, {}, {}, {};", a, b, select(upper, Uint32(set_), Uint32(clear)))

    theirs = shuffle_xor(pick(low, high, sent), mask)
    return pick(low, theirs, into_low), pick(high, theirs, into_high)
