"""Bytes of a 16-byte chunk of which each of four lanes has stored a word, with what it had of the chunk, put in the order of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Uint32

from .ptx import emit_to


def permute(low: Any, high: Any, selector: int) -> Any:
    """Bytes of two words: digit i of the selector, the lowest first, says which of the eight byte i is."""
    return emit_to(Uint32, "prmt.b32 {}, {}, {}, {};", low, high, selector)


def joined_pairs(chunk: Sequence[Any]) -> tuple[Any, ...]:
    """Word q has channels 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 in bytes, or q and q + 4 in BF16."""
    return tuple(permute(a, b, half) for half in (0x5410, 0x7632) for a, b in (chunk[:2], chunk[2:]))


def transposed(chunk: Sequence[Any]) -> tuple[Any, ...]:
    """Word q has channels q, q + 4, q + 8 and q + 12."""
    low, high = ([permute(a, b, selector) for a, b in (chunk[:2], chunk[2:])] for selector in (0x5140, 0x7362))
    return tuple(permute(first, second, selector) for first, second in (low, high) for selector in (0x5410, 0x7632))
