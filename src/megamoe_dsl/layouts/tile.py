"""The fixed shape of an SM100 tile and of a CTA: what tcgen05 and the roles agree on."""

CLUSTER = 2  # CTAs of one tcgen05 pair
BLOCK_N = 128  # weight rows of one CTA: swap-AB makes them half of the pair's M = 256
BLOCK_K = 128  # K elements a stage: 128 bytes of E4M3, one 32-bit word of scales
WARPS_PER_GROUP = 4
DISPATCH_WARPS = 4
LOADER_WARPS = 4  # tokens, weights, MMA, scheduler
