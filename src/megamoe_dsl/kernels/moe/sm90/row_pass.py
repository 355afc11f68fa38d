"""Results of tiles whose tokens are the wgmma's rows, pass by pass on their way through SMEM, where a warp gives each of its 16 tokens 128
bytes: 64 channels as BF16, or 128 as E4M3.

`words(i)` are what a thread gives the 16-byte chunks 2 i and 2 i + 1 of both of its rows; `ordered` makes of a chunk that is read back what
is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

from ....device import cast
from ....device.cast import joined_pairs
from ....device.warp import shuffle_xor
from ..results import Bf16Results, E4m3Results, encode

Parts = Sequence[Sequence[Any]]
"""Sums of a thread, chunk by chunk of 128 weight rows (blocks/sm90/tokens_as_m.py)."""


@dataclass(frozen=True)
class Bf16Pass:
    """A pass of BF16 results, which has half of a chunk of weight rows."""

    channels: ClassVar[int] = 64
    exponents: ClassVar[Sequence[Any]] = ()

    acc: Parts
    part: int

    def words(self, i: int) -> list[Any]:
        """Pairs of channels, rounded here."""
        at = [4 * (8 * (self.part % 2) + 2 * i + j) + 2 * h for j in range(2) for h in range(2)]
        return [cast.pack_bf16(self.acc[self.part // 2][a], self.acc[self.part // 2][a + 1]) for a in at]

    def ordered(self, chunk: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(chunk)


@dataclass(frozen=True)
class E4m3Pass:
    """A chunk: codes of both rows, 16 channels a word over the quad, and the exponent of each row's scale, which a quad shares."""

    channels: ClassVar[int] = 128

    codes: Parts
    exponents: Sequence[Any]

    @classmethod
    def of(cls, acc: Parts, part: int) -> E4m3Pass:
        """Rounded to BF16, then scaled by what the quad's 128 values need."""
        codes, exponents = [], []
        for h in range(2):
            words = [cast.pack_bf16(acc[part][4 * j + 2 * h], acc[part][4 * j + 2 * h + 1]) for j in range(16)]
            amax = reduce(cast.abs_max_bf16, words)
            for mask in (1, 2):
                amax = cast.abs_max_bf16(amax, shuffle_xor(amax, mask))
            exponents.append(cast.scale_exponent(cast.larger_of_pair(amax)))
            codes.append(encode(words, exponents[h]))
        return cls(codes, exponents)

    def words(self, i: int) -> list[Any]:
        """Two channels of the chunk's first 8 and two of its last."""
        return [self.codes[h][2 * i + j] for j in range(2) for h in range(2)]

    def ordered(self, chunk: Sequence[Any]) -> tuple[Any, ...]:
        """Word q of a chunk has channels 2 q, 2 q + 1, 2 q + 8 and 2 q + 9."""
        return joined_pairs(chunk)


def pass_of(form: Bf16Results | E4m3Results, acc: Parts, part: int) -> Bf16Pass | E4m3Pass:
    """A pass of results that are given in a format."""
    return E4m3Pass.of(acc, part) if form.row.scaled else Bf16Pass(acc, part)


def channels_of(form: Bf16Results | E4m3Results) -> int:
    return E4m3Pass.channels if form.row.scaled else Bf16Pass.channels
