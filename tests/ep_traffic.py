"""What dispatch sends from rank to rank, and what is saved by one copy of a token for each rank that has experts of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from megamoe_dsl.hardware.operand_tile import CHANNELS_PER_WORD
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.ep.routing import RoutingTables

SCALE_BYTES = 4


@dataclass(frozen=True)
class Traffic:
    """Rows that cross from one rank to another: with a row for each expert, and with one for each rank.

    row_bytes  a token and its scales
    """

    pairs: int
    tokens: int
    row_bytes: int

    @classmethod
    def of(cls, problem: Problem, topk_idx: Sequence[torch.Tensor], token_saving: bool = True) -> Traffic:
        """Counts rows of all ranks, whose tokens have these experts; without token saving a row is fetched for each of them."""

        def crossing(saving: bool) -> int:
            tables = RoutingTables.of(problem, topk_idx, token_saving=saving)
            return sum(int(one.recv_pairs.sum() - one.recv_pairs[rank]) for rank, one in enumerate(tables))

        form = problem.formats.activations
        scales = SCALE_BYTES * (problem.hidden // CHANNELS_PER_WORD) if form.scale else 0
        return cls(crossing(False), crossing(token_saving), form.row_bytes(problem.hidden) + scales)

    @property
    def saved(self) -> float:
        """Part of the rows that need not cross."""
        return 1 - self.tokens / self.pairs if self.pairs else 0.0

    @property
    def bytes_saved(self) -> int:
        return (self.pairs - self.tokens) * self.row_bytes
