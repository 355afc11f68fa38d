"""Routing tables of an expert-parallel layer: where every (token, slot) pair goes, and who fetches it, from the experts of one rank's
tokens and the counts of all ranks.

Nothing here waits for the device unless it says so, and shapes are those of the problem: a CUDA graph may hold these calls.  The rows that
an expert has of one rank follow one another, in the order of tokens or of a caller's scatter indices.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from ...kernels.moe.halves.layouts.symmetric import ROW_BLOCK, send_capacity
from ...problem import Problem, ProblemError
from ...quant import INDEX_DTYPES
from ..buffers import check_tensor


@dataclass(frozen=True)
class Splits:
    """What one rank's tokens come to; of all ranks together each field has the ranks as its first dimension.

    experts  int32 [E]: tokens for each expert
    ranks    int32 [R]: pairs that each rank fetches, one for each token, or for each of its experts there
    """

    experts: torch.Tensor
    ranks: torch.Tensor

    @classmethod
    def of(cls, problem: Problem, topk_idx: torch.Tensor, *, token_saving: bool = True) -> Splits:
        """Of the tokens of a rank: int64 or int32 [T, topk] experts; what names none drops its pair.  A rank fetches a token
        once, or without token saving for each of its experts.  Raises `ProblemError` for a shape."""
        _check(problem, topk_idx)
        experts = torch.zeros(problem.num_experts + 1, dtype=torch.int32, device=topk_idx.device)
        ranks = torch.zeros(problem.num_ranks + 1, dtype=torch.int32, device=topk_idx.device)
        expert = experts_of(problem, topk_idx).flatten()
        rank = torch.where(leading_pairs(problem, topk_idx, token_saving), ranks_of(problem, topk_idx), problem.num_ranks).flatten()
        ones = torch.ones_like(expert, dtype=torch.int32)
        return cls(experts.scatter_add_(0, expert, ones)[:-1], ranks.scatter_add_(0, rank, ones)[:-1])

    @classmethod
    def stack(cls, ranks: list[Splits]) -> Splits:
        return cls(torch.stack([one.experts for one in ranks]), torch.stack([one.ranks for one in ranks]))


@dataclass(frozen=True)
class RoutingTables:
    """The tables of one rank, as fields of its symmetric buffer (kernels/moe/halves/layouts/symmetric.py); int32.

    pair_rows    [T, topk]: row of the pair on its expert's rank, where rows are sorted by (expert, rank, token); -1 for a dropped pair
    send_pairs   [R, T min(topk, El)]: the pairs that each rank fetches from here, then zeros
    recv_pairs   [R]: how many pairs this rank fetches from each
    expert_rows  [El]: rows of each local expert
    """

    pair_rows: torch.Tensor
    send_pairs: torch.Tensor
    recv_pairs: torch.Tensor
    expert_rows: torch.Tensor

    @classmethod
    def of(
        cls,
        problem: Problem,
        rank: int,
        topk_idx: torch.Tensor,
        splits: Splits,
        *,
        token_saving: bool = True,
        token_sorting: bool = True,
    ) -> RoutingTables:
        """Of a rank whose tokens have the experts `topk_idx`; `splits` are those of all ranks, made with the same `token_saving`.  With
        `token_sorting` a rank's list is in the order of (expert, token), else of tokens.  Raises `ProblemError` for a shape."""
        _check(problem, topk_idx)
        expert = experts_of(problem, topk_idx).flatten()
        order = expert.argsort(stable=True)  # by (expert, token), dropped pairs last; and by rank, which experts are sorted by
        sent = splits.experts[rank].long()
        index = torch.empty_like(expert)
        index[order] = torch.arange(len(expert), device=expert.device) - _first(sent, problem.num_experts + 1)[expert[order]]
        before = splits.experts[:rank].sum(dim=0)
        first = (first_expert_rows(problem, splits.experts.sum(dim=0)) + before).long()
        rows = torch.where(expert < problem.num_experts, torch.cat([first, first.new_zeros(1)])[expert] + index, -1)
        local = slice(rank * problem.experts_per_rank, (rank + 1) * problem.experts_per_rank)
        return cls(
            rows.to(torch.int32).view(topk_idx.shape),
            _lists(problem, topk_idx, order if token_sorting else None, token_saving),
            splits.ranks[:, rank].to(torch.int32).clone(),
            splits.experts[:, local].sum(dim=0).to(torch.int32),
        )


def experts_of(problem: Problem, topk_idx: torch.Tensor) -> torch.Tensor:
    """int64 [T, topk]: the experts, and `num_experts` for a pair that names none."""
    idx = topk_idx.long()
    return torch.where((idx >= 0) & (idx < problem.num_experts), idx, problem.num_experts)


def ranks_of(problem: Problem, topk_idx: torch.Tensor) -> torch.Tensor:
    """int64 [T, topk]: the ranks that have them, and `num_ranks` for a pair that names none."""
    return experts_of(problem, topk_idx) // problem.experts_per_rank


def token_rank_table(problem: Problem, topk_idx: torch.Tensor) -> torch.Tensor:
    """int64 [T, R]: the first expert of each token on each rank, `num_experts` where there is none."""
    expert = experts_of(problem, topk_idx)
    table = torch.full((len(expert), problem.num_ranks + 1), problem.num_experts, dtype=torch.int64, device=expert.device)
    return table.scatter_reduce_(1, ranks_of(problem, topk_idx), expert, "amin")[:, :-1]


def leading_pairs(problem: Problem, topk_idx: torch.Tensor, token_saving: bool = True) -> torch.Tensor:
    """bool [T, topk]: the pairs whose token travels, one for each token and rank; without token saving all that name an expert."""
    expert = experts_of(problem, topk_idx)
    named = expert < problem.num_experts
    if not token_saving:
        return named
    first = token_rank_table(problem, topk_idx).gather(1, ranks_of(problem, topk_idx).clamp(max=problem.num_ranks - 1))
    return named & (expert == first)


def first_expert_rows(problem: Problem, rows: torch.Tensor) -> torch.Tensor:
    """int64 [E]: first row of each expert on its rank; `rows` are those of all experts."""
    padded = ((rows.long() + (ROW_BLOCK - 1)) // ROW_BLOCK * ROW_BLOCK).view(problem.num_ranks, problem.experts_per_rank)
    return (padded.cumsum(dim=1) - padded).flatten()


def _lists(problem: Problem, topk_idx: torch.Tensor, order: torch.Tensor | None, token_saving: bool) -> torch.Tensor:
    """The pairs that travel, one list for each rank; `order` is that of all pairs, None as they come."""
    capacity, ranks = send_capacity(problem), problem.num_ranks
    travels, rank = leading_pairs(problem, topk_idx, token_saving).flatten(), ranks_of(problem, topk_idx).flatten()
    pairs = torch.arange(len(rank), device=rank.device) if order is None else order
    of_rank = (rank[pairs, None] == torch.arange(ranks, device=rank.device)) & travels[pairs, None]
    place = torch.where(of_rank, of_rank.long().cumsum(dim=0) - 1 + capacity * torch.arange(ranks, device=rank.device), ranks * capacity)
    lists = torch.zeros(ranks * capacity + 1, dtype=torch.int64, device=rank.device)
    lists.scatter_(0, place.amin(dim=1), pairs)
    return lists[:-1].view(ranks, capacity).to(torch.int32)


def _first(counts: torch.Tensor, length: int) -> torch.Tensor:
    """Where each of the runs of these lengths begins, laid end to end, and after them the end of all."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(dim=0)])[:length]


def _check(problem: Problem, topk_idx: torch.Tensor) -> None:
    if topk_idx.ndim != 2 or topk_idx.shape[1] != problem.topk:
        raise ProblemError("topk_idx.shape", tuple(topk_idx.shape), f"(tokens, {problem.topk})")
    problem.check_num_tokens(len(topk_idx), "topk_idx.shape[0]")


NAME = "scatter_indices"


def scatter_indices(problem: Problem, topk_idx: torch.Tensor, keys: torch.Tensor | None = None) -> torch.Tensor:
    """int32 [T, topk]: of every pair its place among this rank's pairs of the same expert, from 0; -1 of one that is dropped.

    topk_idx  int64 or int32 [T, topk]
    keys      [T], what an expert's tokens are sorted by, those with the same one in their order; without any all are in their order

    Nothing waits for the device.
    """
    expert = experts_of(problem, topk_idx)
    by_key = torch.arange(len(expert), device=expert.device) if keys is None else keys.argsort(stable=True)
    sorted_experts, order = expert[by_key].flatten().sort(stable=True)
    numbers = torch.arange(len(order), device=expert.device)
    first = torch.searchsorted(sorted_experts, sorted_experts)
    places = torch.empty_like(order)
    places[order] = numbers - first
    found = torch.empty_like(expert)
    found[by_key] = places.view(expert.shape)
    return torch.where(expert < problem.num_experts, found, -1).to(torch.int32)


def check_scatter_indices(problem: Problem, topk_idx: torch.Tensor, given: torch.Tensor, *, values: bool = True) -> None:
    """Raises `ProblemError` for a dtype, shape, stride or device, and, with `values`, for which it waits for the device, for a place that
    the pair's expert does not have or that two pairs have."""
    check_tensor(NAME, given, INDEX_DTYPES, tuple(topk_idx.shape), topk_idx.device)
    if not values:
        return
    expert, wanted = experts_of(problem, topk_idx), scatter_indices(problem, topk_idx)
    most = given.numel()

    def sorted_pairs(places: torch.Tensor) -> torch.Tensor:
        own = expert * (most + 2) + places.clamp(-1, most)
        return torch.where(expert < problem.num_experts, own, -1).flatten().sort().values

    if not torch.equal(sorted_pairs(given), sorted_pairs(wanted)):
        _name_pair(problem.num_experts, expert.tolist(), given.tolist())


def _name_pair(none: int, experts: list[list[int]], places: list[list[int]]) -> None:
    # Raises for the first pair whose place its expert does not have, or a pair before it has.
    pairs = [(token, slot) for token, row in enumerate(experts) for slot, expert in enumerate(row) if expert != none]
    counts = Counter(experts[token][slot] for token, slot in pairs)
    owners: dict[tuple[int, int], tuple[int, int]] = {}
    for pair in pairs:
        expert, place = (each[pair[0]][pair[1]] for each in (experts, places))
        name = f"{NAME}[{pair[0]}, {pair[1]}]"
        if not 0 <= place < counts[expert]:
            raise ProblemError(name, place, f"between 0 and {counts[expert] - 1}: expert {expert} has so many rows of this rank")
        other = owners.setdefault((expert, place), pair)
        if other != pair:
            raise ProblemError(name, place, f"another than {NAME}[{other[0]}, {other[1]}], which has this row of expert {expert}")


def scattered_rows(problem: Problem, topk_idx: torch.Tensor, pair_rows: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """int32 [T, topk]: the rows of all pairs, -1 of those that are dropped, from the rows that they have in the order of tokens
    (`RoutingTables.pair_rows`) and checked indices.  Nothing waits for the device."""
    expert, rows = experts_of(problem, topk_idx), pair_rows.long()
    first = torch.full((problem.num_experts + 1,), torch.iinfo(torch.int64).max, device=rows.device)
    first.scatter_reduce_(0, expert.flatten(), rows.flatten(), "amin")
    return torch.where(expert < problem.num_experts, first[expert] + given, -1).to(torch.int32)
