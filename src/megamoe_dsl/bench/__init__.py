"""Timing on real GPUs: points, roofline, the baseline in the same process group, results as JSON.  Needs neither the DSL nor rich."""
