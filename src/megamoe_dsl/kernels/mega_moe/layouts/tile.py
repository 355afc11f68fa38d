"""What tiles and CTAs of the mega kernels have in common on every architecture."""

from ....hardware.operand_tile import BLOCK_K

__all__ = ["BLOCK_K", "DISPATCH_WARPS", "LOADER_WARPS", "WARPS_PER_GROUP"]

WARPS_PER_GROUP = 4
DISPATCH_WARPS = 4
LOADER_WARPS = 4  # SM100: tokens, weights, MMA, scheduler; SM90: tokens, weights, store, scheduler
