"""Tensor memory of a CTA of SM100: 512 columns of 128 lanes x 32 bits (PTX ISA, Tensor Memory)."""

TMEM_COLUMNS = 512
TMEM_LANES = 128
SMALLEST_ALLOCATION = 32  # columns
