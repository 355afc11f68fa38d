"""What a warp of the inputs stage does at a time: up to 256 channels of a token, eight a lane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, Int64

from ....layouts.arith import ceil_div, div, minimum
from .config import CHUNK, PER_LANE, PreDispatchConfig


def chunks_of_token(config: PreDispatchConfig) -> int:
    """The last has fewer channels where hidden is no multiple of 256."""
    return ceil_div(config.problem.hidden, CHUNK)


@dataclass(frozen=True)
class Chunk:
    """Chunk `number` of all tokens, as a lane sees it."""

    config: cutlass.Constexpr[PreDispatchConfig]
    number: Int32
    lane: Int32

    @property
    def whole(self) -> bool:
        return self.config.problem.hidden % CHUNK == 0

    @property
    def token(self) -> Any:
        return div(self.number, chunks_of_token(self.config))

    def index(self, mine: Any, count: int) -> Any:
        """Index of the chunk's `mine`-th thing of some kind among the token's, where a whole chunk has `count`."""
        return (self.number - self.token * chunks_of_token(self.config)) * count + mine

    def place(self, mine: Any, count: int, row: int) -> Any:
        """Its index among those of all tokens, where a token has `row` of them and one token follows another."""
        return Int64(self.number) * count + mine if self.whole else Int64(self.token) * row + self.index(mine, count)

    def has(self, mine: Any, count: int, row: int) -> Any:
        """Whether the token has it; Python's True where every chunk is whole."""
        return True if self.whole else self.index(mine, count) < row

    @property
    def there(self) -> Any:
        """Whether the lane has channels."""
        return self.has(self.lane * PER_LANE, CHUNK, self.config.problem.hidden)

    @property
    def channel(self) -> Any:
        """The lane's first, over all tokens; x has the same shape on both sides.  A lane without channels is given the token's last."""
        if self.whole:
            return Int64(self.number) * CHUNK + self.lane * PER_LANE
        hidden = self.config.problem.hidden
        return Int64(self.token) * hidden + minimum(self.index(self.lane * PER_LANE, CHUNK), hidden - PER_LANE)
