"""Which block a CTA works on next: orders of blocks, and one scheduler that walks them on the host and in kernels."""
