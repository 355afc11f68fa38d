"""The fixed shape of an SM100 tile: what tcgen05 and the roles agree on."""

CLUSTER = 2  # CTAs of one tcgen05 pair
BLOCK_N = 128  # weight rows of one CTA: swap-AB makes them half of the pair's M = 256
ACCUMULATORS = 2  # TMEM accumulator buffers
