"""Blocks of Hopper kernels: wgmma main loops with promotion, and the loaders that feed them."""
