"""What a layer of another project is found by, and made from."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Protocol

import torch

from megamoe_dsl.activation import SILU
from megamoe_dsl.cases import TokenInputs
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import ExpertWeights

BASELINE = "baseline"  # Name in records of another project's kernel.


def require_plain(problem: Problem) -> None:
    """What baselines compute.  Raises `ProblemError` for another activation, biases, and weights that combine applies."""
    for field, plain in (("activation", SILU), ("biases", False), ("weigh_results", False)):
        if getattr(problem, field) != plain:
            raise ProblemError(field, getattr(problem, field), f"{plain}: baselines have no other")


class LayerBaseline(Protocol):
    """A layer of another project on this rank's GPU, from the same weights.  All ranks call `allocate`, `load` and `free` together.

    PACKAGE  what it is imported as, and is found by in a folder of unpacked wheels
    RECIPE   number formats that it computes in, by name
    version  of that package
    """

    PACKAGE: ClassVar[str]
    RECIPE: ClassVar[str]
    version: str

    def __init__(self, site: Path, problem: Problem, weights: ExpertWeights) -> None:
        """Imports the package from the folder `site`, and brings this rank's weights into its order."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the symmetric buffer of one rank."""

    def allocate(self, problem: Problem) -> None:
        """Makes a buffer for `problem.max_tokens_per_rank` tokens; `problem` may differ from the first one in that field only."""

    def load(self, inputs: TokenInputs) -> None:
        """Copies this rank's tokens into the buffer, once earlier launches on all ranks are done with it."""

    def __call__(self, y: torch.Tensor) -> None:
        """Launches on torch's current stream: y, bf16 [tokens, hidden], of the tokens in the buffer.  May be captured into a graph."""

    def free(self) -> None:
        """Frees the buffer, if there is one."""
