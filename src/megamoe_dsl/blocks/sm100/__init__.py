"""Blocks of Blackwell kernels: tcgen05 main loops of CTA pairs, and the loaders that feed them."""
