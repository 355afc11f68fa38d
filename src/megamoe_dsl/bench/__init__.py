"""Timing on real GPUs: points, roofline, the peer in the same process group, results as JSON.  Needs neither the DSL nor rich."""
