"""A model of performance: how long a launch of the fused MoE kernels takes on a GPU, what limits it, and which configuration is faster.

It simulates K blocks, rings, tensor cores and epilogues over shared memory bandwidths (engine.py) in the order of the kernels' own
schedule, with constants that were fitted to measured times (calibration.py).  How well it does: docs/explanation/predict.md.
"""
