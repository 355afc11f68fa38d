"""Mutants of the top_experts family; a test of its own runs each."""

from __future__ import annotations

from mutant import Mutant

FILE = "kernels/expert_routing/top_experts.py"
CHOSEN = ("tests/kernels/test_top_experts.py::test_chosen_experts_are_those_of_the_reference",)


def mutant(name: str, kind: str, old: str, new: str) -> Mutant:
    """One of the kernel."""
    return Mutant(name, kind, FILE, old, new, CHOSEN, ())


MUTANTS = (
    mutant("of a lane's equal scores the last is chosen", "wrong number", "reversed(range(len(words)))", "range(len(words))"),
    mutant(
        "there is an expert past the last",
        "off by one",
        "cutlass.select_(lane + first < experts",
        "cutlass.select_(lane + first <= experts",
    ),
    mutant("an expert is chosen again", "wrong number", "        words = without(words, lane, expert)\n", ""),
    mutant("one score counts for a group", "wrong number", "COUNTED = 2", "COUNTED = 1"),
    mutant(
        "of equal groups the last is better",
        "off by one",
        "theirs >= total if other < group else theirs > total",
        "theirs > total if other < group else theirs >= total",
    ),
    mutant(
        "a lane past the slots has a share",
        "off by one",
        "cutlass.select_(lane < problem.topk, share",
        "cutlass.select_(lane <= problem.topk, share",
    ),
)
