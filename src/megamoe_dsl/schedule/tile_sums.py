"""Which expert a number of a tile belongs to, found by two ballots of a warp among up to 1024 experts.

Every expert has its number of tiles added to those before it, as 16 bits; of every 32 experts the last sum is kept again.  A warp first
asks 32 lanes which runs of 32 experts end before the tile, then which experts of the run do.  Source: AsteroMoE,
"Tile Scheduler".
"""

from __future__ import annotations

LANES = 32
MOST_EXPERTS = LANES * LANES
MOST_TILES = (1 << 16) - 1
