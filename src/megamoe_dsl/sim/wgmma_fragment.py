"""How the registers of a warp hold its 16 rows of a wgmma's matrices (PTX ISA, "Register Fragments for wgmma.mma_async")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[Any]
RESULT_TYPES: dict[str, type] = {"f32": np.float32, "f16": np.float16, "s32": np.int32}


def to_matrix(registers: list[Any], dtype: type = np.float32) -> Matrix:
    """The D fragment, (16, n): register 4j + 2h + q of thread t is row t / 4 + 8h, column 8j + 2 (t % 4) + q.

    Of 16-bit elements, register 2j + h holds the columns of both q.
    """
    words: Matrix = np.stack([np.ascontiguousarray(r).view(np.uint32) for r in registers]).view(dtype)
    if np.dtype(dtype).itemsize == 2:
        return words.reshape(-1, 2, 8, 4, 2).transpose(1, 2, 0, 3, 4).reshape(16, -1)
    return words.reshape(-1, 2, 2, 8, 4).transpose(1, 3, 0, 4, 2).reshape(16, -1)


def to_registers(matrix: Matrix) -> Matrix:
    """Inverse of :func:`to_matrix`: (registers, 32 threads)."""
    pieces = matrix.reshape(2, 8, -1, 4, 2)  # h, t / 4, j, t % 4, q
    if matrix.itemsize == 2:
        return np.ascontiguousarray(pieces.transpose(2, 0, 1, 3, 4)).view(np.uint32).reshape(-1, 32)
    return np.ascontiguousarray(pieces.transpose(2, 0, 4, 1, 3)).reshape(-1, 32)


def a_fragment(registers: list[NDArray[np.uint32]]) -> NDArray[np.uint8]:
    """The A fragment: register h + 2g of thread t holds bytes 16g + 4 (t % 4) of row t / 4 + 8h; returns (16, 32) bytes."""
    words = np.stack(registers).reshape(2, 2, 8, 4)  # g, h, t / 4, t % 4
    return np.ascontiguousarray(words.transpose(1, 2, 0, 3)).view(np.uint8).reshape(16, 32)


@dataclass
class Accumulator:
    """Registers of one warp that unfinished instructions will write, and their value so far."""

    registers: tuple[int, ...]
    values: Matrix | None
    pending: int = 0
