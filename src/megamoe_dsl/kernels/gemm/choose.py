"""Which tile, and how it is computed: what was measured (tuned/), else heuristics."""

from __future__ import annotations

from typing import Any

from ...target import Target
from .problem import GemmProblem


def choose_fields(problem: GemmProblem, target: Target, rows: int) -> dict[str, Any]:
    """Fields of a configuration for `rows` rows of A."""
    return {"block_m": 128, "block_n": 128}
