"""Timing of this project's kernels on real GPUs: points, results as JSON, entries of tuned tables.  Needs neither the DSL nor rich."""
