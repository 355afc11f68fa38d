"""Serving engines whose expert-parallel layer calls DeepGEMM's MegaMoE, made to call this project's (docs/howto/engines.md)."""
