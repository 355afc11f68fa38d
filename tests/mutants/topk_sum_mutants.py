"""Mutants of the topk_sum family; a test of its own runs each."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

SUMMED = ("tests/kernels/test_expert_routing.py::test_rows_are_summed_in_order",)
mutant = partial(Mutant, nearest=SUMMED, archs=())

MUTANTS = (
    mutant(
        "masked slots count",
        "off by one",
        "sum_chunk",
        "position >= 0",
        "position >= -1",
    ),
    mutant(
        "slots are added from the last on",
        "wrong number",
        "sum_chunk",
        "cutlass.range_constexpr(topk)",
        "cutlass.range_constexpr(topk - 1, -1, -1)",
    ),
    mutant(
        "the last half chunk of a token is left out",
        "off by one",
        "topk_sum_kernel",
        "channel < config.problem.hidden",
        "channel + CHUNK <= config.problem.hidden",
    ),
)
