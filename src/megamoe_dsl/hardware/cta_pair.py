"""The two CTAs whose tensor cores multiply a tile together (PTX ISA, tcgen05)."""

CLUSTER = 2  # CTAs of a pair
BLOCK_N = 128  # weight rows of one CTA: swap-AB makes them half of the pair's M = 256
PAIR_ROWS = CLUSTER * BLOCK_N
