"""Routing tables of an expert-parallel layer: the destination row of every (token, slot) pair, and the rank that fetches it.

An expert's rows from one rank are contiguous, in the order of tokens or of a caller's scatter indices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...kernels.moe.halves.layouts.symmetric import first_rows, send_capacity
from ...problem import Problem, ProblemError
from ...quant import INDEX_DTYPES
from ..buffers import check_tensor


@dataclass(frozen=True)
class RoutingTables:
    """The tables of one rank, as fields of its symmetric buffer (kernels/moe/halves/layouts/symmetric.py); int32.

    pair_rows    [T, topk]: row of the pair on its expert's rank, where rows are sorted by (expert, rank, token); -1 for a masked slot
    send_pairs   [R, T min(topk, El)]: the pairs that each rank fetches from this one, then zeros
    recv_pairs   [R]: number of pairs that this rank fetches from each rank
    expert_rows  [El]: rows of each local expert
    """

    pair_rows: torch.Tensor
    send_pairs: torch.Tensor
    recv_pairs: torch.Tensor
    expert_rows: torch.Tensor

    @classmethod
    def of(
        cls, problem: Problem, topk_idx: Sequence[torch.Tensor], *, token_saving: bool = True, token_sorting: bool = True
    ) -> list[RoutingTables]:
        """Tables of all ranks for their topk_idx, int [T, topk], as the kernel makes them.  A rank fetches a token once, without
        `token_saving` once per expert; `token_sorting` sorts its list by (expert, token) instead of token.  A Python loop over all pairs,
        for the simulator."""
        local, ranks = problem.experts_per_rank, problem.num_ranks
        pairs = sorted(
            (expert, rank, token, slot)
            for rank, idx in enumerate(topk_idx)
            for token, row in enumerate(experts_of(problem, idx).tolist())
            for slot, expert in enumerate(row)
            if expert < problem.num_experts
        )
        rows = Counter(expert for expert, *_ in pairs)
        counts = [[rows[owner * local + index] for index in range(local)] for owner in range(ranks)]
        next_row = [row for of_owner in counts for row in first_rows(of_owner)[:-1]]
        made = [
            cls(
                torch.full(idx.shape, -1, dtype=torch.int32),
                torch.zeros(ranks, send_capacity(problem), dtype=torch.int32),
                torch.zeros(ranks, dtype=torch.int32),
                torch.tensor(of_owner, dtype=torch.int32),
            )
            for idx, of_owner in zip(topk_idx, counts, strict=True)
        ]
        leading: dict[tuple[int, ...], tuple[int, int, int, int]] = {}
        for expert, rank, token, slot in pairs:
            made[rank].pair_rows[token, slot] = next_row[expert]
            next_row[expert] += 1
            leading.setdefault((expert // local if token_saving else expert, rank, token), (expert, rank, token, slot))
        for expert, rank, token, slot in leading.values() if token_sorting else sorted(leading.values(), key=lambda one: one[1:]):
            fetched = made[expert // local].recv_pairs
            made[rank].send_pairs[expert // local, fetched[rank]] = token * problem.topk + slot
            fetched[rank] += 1
        return made


def experts_of(problem: Problem, topk_idx: torch.Tensor) -> torch.Tensor:
    """int64 [T, topk]: the experts, and `num_experts` for masked slots."""
    idx = topk_idx.long()
    return torch.where((idx >= 0) & (idx < problem.num_experts), idx, problem.num_experts)


NAME = "scatter_indices"


def scatter_indices(problem: Problem, topk_idx: torch.Tensor, keys: torch.Tensor | None = None) -> torch.Tensor:
    """int32 [T, topk]: each pair's position, from 0, among this rank's pairs of the same expert; -1 for masked slots.  No host sync.

    topk_idx  int64 or int32 [T, topk]
    keys      [T]: tokens of an expert are sorted stably by key; by default in token order
    """
    expert = experts_of(problem, topk_idx)
    if keys is not None and keys.shape != expert.shape[:1]:
        raise ProblemError("keys.shape", tuple(keys.shape), f"({len(expert)},), one for each token")
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
    """Raises `ProblemError` for a dtype, shape, stride or device; with `values`, which synchronizes, also for a position out of range or
    used twice."""
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
    # Raises for the first pair with a position out of range, or that an earlier pair has.
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
    """int32 [T, topk]: the row of each pair, -1 for masked slots, from its row in token order (`RoutingTables.pair_rows`) and checked
    scatter indices.  Does not synchronize."""
    expert, rows = experts_of(problem, topk_idx), pair_rows.long()
    first = torch.full((problem.num_experts + 1,), torch.iinfo(torch.int64).max, device=rows.device)
    first.scatter_reduce_(0, expert.flatten(), rows.flatten(), "amin")
    return torch.where(expert < problem.num_experts, first[expert] + given, -1).to(torch.int32)
