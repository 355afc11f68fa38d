"""The layer of the engines' call sequences on GPUs, and what it runs."""

from __future__ import annotations

from typing import Any

from megamoe_dsl.arch import SM90
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.preparation import layer_kernels
from megamoe_dsl.target import Target
from megamoe_dsl.tuned import DEFAULT_GPU

SMS = 132


def problem_of(ranks: int) -> Problem:
    return Problem(1024, 512, 8 * ranks, 4, ranks, 64, recipe="fp8xfp8")


def configs(ranks: int) -> set[Any]:
    """Everything that the checks run."""
    return set(layer_kernels(problem_of(ranks), Target(SM90, SMS, DEFAULT_GPU)))
