"""Where the bytes of the mega kernels' buffers are, on every architecture.  Pure Python."""
