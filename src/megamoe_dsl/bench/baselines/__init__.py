"""Other projects' kernels on this project's inputs, timed in the same run."""
