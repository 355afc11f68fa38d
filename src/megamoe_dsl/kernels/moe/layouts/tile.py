"""What tiles and CTAs of the fused kernels have in common on every architecture: extents, warps, hardware barriers."""

from __future__ import annotations

TILE_ROWS = 256  # weight rows of a tile: a tcgen05 pair's M, or 128 for each of two warpgroups
WARPS_PER_GROUP = 4
DISPATCH_WARPS = 4
LOADER_WARPS = 4  # SM100: tokens, weights, MMA, scheduler; SM90: tokens, weights, store, scheduler


class NamedBarrier:
    """Numbers of `barrier.cta`; 0 stays free for the whole CTA."""

    DISPATCH = 1  # 128 dispatch threads
    DISPATCH_EPILOGUE = 2  # dispatch has pulled all, epilogue has passed BEFORE_COMBINE
    EPILOGUE_ALL = 3
    EPILOGUE_GROUP = 4  # and 5: one per epilogue warpgroup
