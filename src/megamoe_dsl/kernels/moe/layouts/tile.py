"""What tiles and CTAs of the mega kernels have in common on every architecture."""

TILE_ROWS = 256  # weight rows of a tile: a tcgen05 pair's M, or 128 for each of two warpgroups
WARPS_PER_GROUP = 4
DISPATCH_WARPS = 4
LOADER_WARPS = 4  # SM100: tokens, weights, MMA, scheduler; SM90: tokens, weights, store, scheduler
