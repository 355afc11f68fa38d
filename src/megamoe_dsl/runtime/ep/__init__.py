"""Running the kernels of `ep_moe`: routing tables, the simulated ranks, the layer."""
