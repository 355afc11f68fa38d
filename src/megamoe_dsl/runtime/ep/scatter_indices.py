"""Scatter indices that a caller gives: the order of a rank's tokens among the rows of each of their experts.

The rows that an expert has of one rank follow one another.  Without indices they are in the order of tokens; with them a caller says which
comes first, as where the rows of one adapter are to lie together.
"""

from __future__ import annotations

from collections import Counter

import torch

from ...problem import Problem, ProblemError
from ...quant import INDEX_DTYPES
from ..buffers import check_tensor
from .routing import experts_of

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
