"""How many warps a CTA has of which kind."""

GATHER_WARPS = 4
"""Warps that gather rows and their scales: TMA takes gather4 from one thread of a warp at a time."""
