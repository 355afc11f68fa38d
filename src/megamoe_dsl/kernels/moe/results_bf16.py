"""Results that travel as BF16: what Linear2's epilogues send, and what combine adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...device.cast import add_bf16, fma, unpack_bf16
from ...device.memory import load_shared_v4, store_v4
from ...device.where import store_where
from .layouts.combine_row import CombineRow
from .layouts.combine_vectors import vector_address


@dataclass(frozen=True)
class Bf16Results:
    """`fused`: the GPU adds BF16 to FP32 in one instruction."""

    row: CombineRow
    fused: bool

    def send(self, place: Any, first: Any, lane: Any, words: Sequence[Any]) -> None:
        """A lane's 8 channels, BF16 in four words, to their place: byte `first` of a row."""
        store_where(self.row.holds(first), partial(store_v4, place, tuple(words)))

    def add(self, sums: Sequence[Any], slot: Any, lane: Any, vector: int, first_scale: Any, weight: Any = None) -> list[Any]:
        """The lane's sums of a vector of the piece in a slot, with the piece's values added, times a weight if there is one."""
        found: list[Any] = []
        for i, word in enumerate(load_shared_v4(vector_address(slot, lane, vector))):
            if weight is not None:
                found += [fma(value, weight, sums[2 * i + h]) for h, value in enumerate(unpack_bf16(word))]
                continue
            found += add_bf16(sums[2 * i], sums[2 * i + 1], word, self.fused)
        return found
