"""Expert parallelism for callers with an activation of their own: dispatch with Linear1 in one launch, Linear2 with combine in another.
Loaders, main loops and epilogues are those of `gemm`."""
