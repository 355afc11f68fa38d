"""Timing of this project's kernels on real GPUs: points, results as JSON, and what they say of tables.  Needs neither the DSL nor rich."""
