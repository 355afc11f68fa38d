"""ldmatrix and stmatrix: register fragments from and to shared memory (PTX ISA; SM100_FACTS)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Uint32

from .ptx import emit, emit_to_many


def load_four(address: Any) -> tuple[Any, ...]:
    """Four tiles of 8 rows of 16 bytes: lane 8 k + r gives the address of row r of tile k.  Returns of each tile word `lane % 4` of row
    `lane / 4`."""
    return emit_to_many([Uint32] * 4, "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{}, {}, {}, {}}}, [{}];", address)


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
