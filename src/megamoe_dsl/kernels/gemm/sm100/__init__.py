"""GEMM kernels of SM100, computed by CTA pairs."""
