"""Kernels: a class that holds the configuration and the dispatch of warps to roles, and one file per role."""
