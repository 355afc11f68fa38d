"""A tile of D as the warps of a CTA get it."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from ...device.ring import TileQueue, read_tile

APART, SAME_TOKENS, SAME_WEIGHTS, ALONE = range(4)
"""What the tiles of a cluster have in common; `ALONE`: there is one only."""
LAST = -1  # n_block of what says that nothing is left


@dataclass(frozen=True)
class GemmTile:
    """One tile of D.

    group     of its rows
    sharing   with the tile of the cluster's other CTA
    n_block   column block; -1 past the last tile
    row       of A and D
    valid_m   rows of it that are to be written; 0 or less where the block of a contiguous problem belongs to no group
    """

    group: Int32
    sharing: Int32
    n_block: Int32
    row: Int32
    valid_m: Int32

    @property
    def same_tokens(self) -> Boolean:
        """Whether the tiles of the cluster have one row block."""
        return self.sharing == SAME_TOKENS

    @property
    def same_weights(self) -> Boolean:
        """Whether they have one column block of one group."""
        return self.sharing == SAME_WEIGHTS

    @property
    def alone(self) -> Boolean:
        """Whether the cluster's other CTA has no tile."""
        return self.sharing == ALONE

    def valid(self) -> Boolean:
        """Whether it is a tile, not the end of the walk."""
        return self.n_block != LAST


@cute.jit
def next_tile(queue: TileQueue) -> tuple[GemmTile, TileQueue]:
    """A warp that works on tiles: its next one, and the place of the one after it."""
    (which, n_block, row, valid_m), following = read_tile(queue)
    return GemmTile(which >> 2, which & 3, n_block, row, valid_m), following


@cute.jit
def read_end(tile: GemmTile, tiles: TileQueue, blocks_per_fetch: cutlass.Constexpr[int]):
    """A warp that has no tile left, at the end of its role.  Where the cluster's other CTA had one more, that CTA's end is published after
    it, to both: it is read before this CTA leaves, so that nothing is on its way to shared memory that is given up."""
    if cutlass.const_expr(blocks_per_fetch > 1):
        if tile.alone:
            next_tile(tiles)
