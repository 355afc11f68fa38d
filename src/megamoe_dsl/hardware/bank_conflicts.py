"""Wavefronts of a shared-memory access, counted from addresses.

Shared memory has 32 banks of 4 bytes.  A warp's access of 4 bytes a lane is one request, of 8 bytes two (half warps), of 16 bytes four
(quarter warps); a request takes as many wavefronts as the busiest bank has distinct words.  A matrix instruction is one request per
tile of eight 16-byte rows.  Source: CUDA C++ programming guide, "Shared Memory"; NVIDIA profiling guide, "Shared memory".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

BANKS = 32
BANK_BYTES = 4
REQUEST_BYTES = BANKS * BANK_BYTES


def wavefronts(addresses: Sequence[int], width: int) -> int:
    """Wavefronts of an access of `width` bytes (4, 8 or 16) by each of the lanes, in lane order.  Raises ValueError when an address is not
    aligned."""
    if any(address % width for address in addresses):
        raise ValueError(f"an address is not a multiple of {width}")
    lanes = REQUEST_BYTES // width
    return sum(_request(addresses[i : i + lanes], width) for i in range(0, len(addresses), lanes))


def _request(addresses: Sequence[int], width: int) -> int:
    words = {(address + i) // BANK_BYTES for address in addresses for i in range(0, width, BANK_BYTES)}
    return max(Counter(word % BANKS for word in words).values())
