"""A GEMM made of parts: its problem, configuration, buffers, loaders, main loop and epilogues, which the kernels that multiply share."""
