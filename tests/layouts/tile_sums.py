"""The tables that a warp searches with two ballots for the expert of a tile (`blocks/gemm/tile_scheduler.py`), and the search, on hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from megamoe_dsl.blocks.gemm.tile import LANES, MOST_TILES

MOST_EXPERTS = LANES * LANES


@dataclass(frozen=True)
class TileSums:
    """`ends`: the number after each expert's last tile.  Raises ValueError for more than 1024 experts, or for sums beyond 16 bits."""

    ends: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.ends) <= MOST_EXPERTS:
            raise ValueError(f"ends: {len(self.ends)} experts, must be 1 to {MOST_EXPERTS}")
        if self.ends[-1] > MOST_TILES:
            raise ValueError(f"ends: {self.ends[-1]} tiles, must be at most {MOST_TILES}, what 16 bits hold")

    @classmethod
    def of(cls, counts: Sequence[int], block: int, columns: int = 1) -> TileSums:
        """From the rows of each expert, in blocks of so many rows by `columns` column blocks."""
        return cls(tuple(accumulate(-(-count // block) * columns for count in counts)))

    @property
    def num_tiles(self) -> int:
        return self.ends[-1]

    @property
    def run_ends(self) -> tuple[int, ...]:
        """Of every 32 experts, the number after their last tile."""
        return tuple(self.ends[min(first + LANES, len(self.ends)) - 1] for first in range(0, len(self.ends), LANES))

    @property
    def num_bytes(self) -> int:
        """Shared memory that both tables take."""
        return 2 * (len(self.ends) + len(self.run_ends))

    def find(self, tile: int) -> tuple[int, int]:
        """(expert, number within the expert) of a tile; (number of experts, what is over) past the last one."""
        run = _ballot(self.run_ends, tile).bit_count()
        expert = run * LANES + _ballot(self.ends[run * LANES : (run + 1) * LANES], tile).bit_count()
        expert = min(expert, len(self.ends))
        return expert, tile - (self.ends[expert - 1] if expert else 0)


def _ballot(ends: Sequence[int], tile: int) -> int:
    """Bit l: the end that lane l has lies at or before the tile."""
    assert len(ends) <= LANES
    return sum(1 << lane for lane, end in enumerate(ends) if end <= tile)
