"""Machine code as nvdisasm prints it: instructions, control flow, loops and their counts.  Knows nothing of our kernels."""
