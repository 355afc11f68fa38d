"""stmatrix: register fragments to shared memory, transposed (PTX ISA, stmatrix; SM100_FACTS)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .ptx import emit


def store_transposed_b8(address: Any, words: Sequence[Any]) -> None:
    """Tiles of 16 rows x 8 columns of bytes (1, 2 or 4), column by column: lane 8 k + c gives the address of column c of tile k."""
    names = ", ".join("{}" for _ in words)
    emit(f"stmatrix.sync.aligned.m16n8.x{len(words)}.trans.shared.b8 [{{}}], {{{{{names}}}}};", address, *words)


def store_b16(address: Any, words: Sequence[Any]) -> None:
    """Tiles of 8 x 8 halves (1, 2 or 4), row by row: lane 8 k + r gives the address of row r of tile k."""
    names = ", ".join("{}" for _ in words)
    emit(f"stmatrix.sync.aligned.m8n8.x{len(words)}.shared.b16 [{{}}], {{{{{names}}}}};", address, *words)


def store_transposed_b16(address: Any, words: Sequence[Any]) -> None:
    """Tiles of 8 x 8 halves (1, 2 or 4), column by column: lane 8 k + c gives the address of column c of tile k."""
    names = ", ".join("{}" for _ in words)
    emit(f"stmatrix.sync.aligned.m8n8.x{len(words)}.trans.shared.b16 [{{}}], {{{{{names}}}}};", address, *words)
