"""Mutants of the topk_sum family; a test of its own runs each."""

from __future__ import annotations

from mutant import Mutant

FILE = "kernels/expert_routing/topk_sum.py"
SUMMED = ("tests/kernels/test_expert_routing.py::test_rows_are_summed_in_order",)


def mutant(name: str, kind: str, old: str, new: str) -> Mutant:
    """One of the kernel."""
    return Mutant(name, kind, FILE, old, new, SUMMED, ())


MUTANTS = (
    mutant("masked slots count", "off by one", "if position >= 0:", "if position >= -1:"),
    mutant("slots are added from the last on", "wrong number", "range_constexpr(topk):", "range_constexpr(topk - 1, -1, -1):"),
    mutant(
        "the last half chunk of a token is left out",
        "off by one",
        "if channel < config.problem.hidden:",
        "if channel + CHUNK <= config.problem.hidden:",
    ),
)
