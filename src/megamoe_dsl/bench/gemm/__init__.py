"""Timing of the GEMM family on one GPU."""
