"""The two halves of an expert-parallel layer: bits of small cases, and BF16 beside FP8 and torch."""
