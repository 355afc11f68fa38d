"""Hypothesis strategies for routings and for tokens of experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import strategies as st

from megamoe_dsl.problem import Problem

MASKED = -1  # topk_idx of a slot that names no expert


@st.composite
def token_counts(draw: st.DrawFn, experts: int, block_m: int, *, max_blocks: int = 3) -> list[int]:
    """Tokens of each expert, dense around the edges of a block.  Shrinks to no tokens at all."""
    edges = sorted({0, 1, block_m - 1, block_m, block_m + 1, max_blocks * block_m})
    one = st.one_of(st.sampled_from(edges), st.integers(0, max_blocks * block_m))
    return draw(st.lists(one, min_size=experts, max_size=experts))


@dataclass(frozen=True)
class TokenRouting:
    """`topk_idx[rank][token][slot]`: a global expert, or `MASKED`.  A token names an expert at most once."""

    problem: Problem
    topk_idx: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def num_tokens(self) -> tuple[int, ...]:
        return tuple(len(tokens) for tokens in self.topk_idx)

    def entries(self) -> Iterator[tuple[int, int, int, int]]:
        """(source rank, token, slot, expert) of every slot that is not masked."""
        for rank, tokens in enumerate(self.topk_idx):
            for token, slots in enumerate(tokens):
                for slot, expert in enumerate(slots):
                    if expert != MASKED:
                        yield rank, token, slot, expert

    def received(self, rank: int) -> list[int]:
        """Tokens that each local expert of `rank` receives from all ranks."""
        local = self.problem.experts_per_rank
        counts = [0] * local
        for _, _, _, expert in self.entries():
            if expert // local == rank:
                counts[expert % local] += 1
        return counts


@st.composite
def routings(draw: st.DrawFn, problem: Problem, *, max_tokens: int = 8) -> TokenRouting:
    """Routings of up to `max_tokens` tokens a rank (and no more than the problem's capacity).

    Ranks may have no tokens; slots may be masked; half of the examples are skewed: all ranks draw from the same few experts.  Shrinks to
    no tokens on any rank, then to tokens with every slot masked, then to low experts in the first slots.
    """
    most = min(max_tokens, problem.max_tokens_per_rank)
    lengths = [draw(st.integers(0, most)) for _ in range(problem.num_ranks)]
    reach = draw(st.integers(1, problem.num_experts)) if draw(st.booleans()) else problem.num_experts
    slots = st.lists(st.integers(0, reach), min_size=problem.topk, max_size=problem.topk)  # 0 masks, n names expert n - 1
    return TokenRouting(problem, tuple(tuple(_distinct(draw(slots)) for _ in range(n)) for n in lengths))


def worst_routing(problem: Problem, rank: int = 0) -> TokenRouting:
    """Every token of every rank on as many experts of `rank` as top-k allows: what the pool must hold.  The other slots are masked."""
    local = problem.experts_per_rank
    named = tuple(rank * local + n for n in range(problem.max_experts_per_token))
    token = named + (MASKED,) * (problem.topk - len(named))
    return TokenRouting(problem, ((token,) * problem.max_tokens_per_rank,) * problem.num_ranks)


def _distinct(choices: list[int]) -> tuple[int, ...]:
    """Slots from 1-based experts; what is named a second time is masked."""
    return tuple(MASKED if choice == 0 or choice in choices[:slot] else choice - 1 for slot, choice in enumerate(choices))
