"""The layer of a few tokens on one GPU in one launch, for SM90."""
