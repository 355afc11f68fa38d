"""From tensor-memory fragments of E2M1 to rows of tokens: the transpose that stmatrix, whose smallest element is a byte, cannot make."""

from __future__ import annotations

from typing import Any

from cutlass import Uint32

from ..layouts.arith import select
from .ptx import emit_to
from .warp import shuffle_xor

LOW = 0x0F0F0F0F  # the lower nibble of every byte
HIGH = 0xF0F0F0F0


def gather_rows(first: Any, second: Any, lane: Any) -> tuple[Any, Any]:
    """16 channels of one token of 32, lowest in the lowest nibble, as two words.

    In a thread of row r = lane / 4 and column j = lane % 4, byte 2 g + q of the words, `first` for tokens 0 to 15, has channel r of token
    8 g + 2 j + q in its low nibble and channel r + 8 in its high one.  The token that a lane ends with:
    `blocks.sm100.epilogue_tile.packed_token`.
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
