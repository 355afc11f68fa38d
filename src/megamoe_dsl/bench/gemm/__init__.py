"""Timing of the GEMM family on one GPU, beside other projects' kernels in the same process."""
