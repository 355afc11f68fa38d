"""Layouts for pictures and proofs: which element each register of each thread holds, and bank conflicts.

All fragments repeat one 8x8 matrix, of which thread t has row t / 4 and columns 2 (t % 4) and 2 (t % 4) + 1.  A warp's access to shared
memory of 4 bytes a lane is one request, of 8 bytes two (half warps), of 16 bytes four (quarter warps); a request takes as many wavefronts
as the busiest of the 32 banks of 4 bytes has distinct words.

Sources: PTX ISA, "Data Movement Shape" (tcgen05.ld), "Register Fragments for wgmma.mma_async"; NVIDIA profiling guide, "shared memory".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..layouts.layout import Layout

WINDOW = 32  # TMEM lanes that a warp can reach


def fragment(column: int, *repeats: int) -> Layout:
    """(thread, (q, h, *n)) -> row + `column` * column of 16 rows: two 8x8 matrices above each other (h), repeated to the right (n)."""
    values = (2, 2, *repeats), (column, 8, *(8 * column for _ in repeats))
    return Layout(((4, 8), values[0]), ((2 * column, 1), values[1]))


def tmem_16x256b(repeats: int) -> Layout:
    """tcgen05.ld.16x256b.xN: (thread, (q, h, n)) -> lane + 32 * column; register 4 n + 2 h + q."""
    return fragment(WINDOW, repeats)


BANKS = 32
BANK_BYTES = 4
REQUEST_BYTES = BANKS * BANK_BYTES


def wavefronts(addresses: Sequence[int], width: int) -> int:
    """Wavefronts of an access of `width` bytes (4, 8 or 16) by each lane, in lane order.  Raises ValueError for an unaligned address."""
    if any(address % width for address in addresses):
        raise ValueError(f"an address is not a multiple of {width}")
    lanes = REQUEST_BYTES // width
    return sum(_request(addresses[i : i + lanes], width) for i in range(0, len(addresses), lanes))


def _request(addresses: Sequence[int], width: int) -> int:
    words = {(address + i) // BANK_BYTES for address in addresses for i in range(0, width, BANK_BYTES)}
    return max(Counter(word % BANKS for word in words).values())
