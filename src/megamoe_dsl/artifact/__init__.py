"""Compiled kernels: how they are made, what they hold, and the folders and libraries that they lie in."""
