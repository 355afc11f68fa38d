"""A model of performance: how long a launch of the fused kernels takes, what limits it, which configuration is faster
(docs/explanation/predict.md)."""
