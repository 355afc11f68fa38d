"""Which token goes to which expert, in which order it arrives, and where it lands in the token pool."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import INDEX_DTYPES


@dataclass(frozen=True)
class Routing:
    """Tokens of every expert, per source rank, on the CPU.

    slots   slots[e][r] is int64 [n, 2]: the (token, top-k slot) pairs that rank r sends to global expert e
    counts  int64 [num_experts, num_ranks], the n of each pair
    """

    slots: tuple[tuple[torch.Tensor, ...], ...]
    counts: torch.Tensor


def _check_topk_idx(problem: Problem, rank: int, idx: torch.Tensor) -> None:
    if idx.dtype not in INDEX_DTYPES:
        raise ProblemError(f"topk_idx[{rank}].dtype", idx.dtype, " or ".join(map(str, INDEX_DTYPES)))
    if idx.ndim != 2 or idx.shape[1] != problem.topk:
        raise ProblemError(f"topk_idx[{rank}].shape", tuple(idx.shape), f"(tokens, {problem.topk})")
    problem.check_num_tokens(idx.shape[0], f"topk_idx[{rank}].shape[0]")
    check_experts(problem, f"topk_idx of rank {rank}", idx)


def check_experts(problem: Problem, name: str, idx: torch.Tensor) -> None:
    """Raises `ProblemError`, which names token and slot, for an expert out of range or repeated in a row.  Waits for the device."""
    outside = ((idx < -1) | (idx >= problem.num_experts)).nonzero()
    if len(outside):
        token, slot = outside[0].tolist()
        allowed = f"-1 (masked) or 0..{problem.num_experts - 1}"
        raise ProblemError(f"{name}, token {token}, slot {slot}", int(idx[token, slot]), allowed)
    order = idx.argsort(dim=1, stable=True)
    ordered = idx.gather(1, order)
    repeated = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).nonzero()
    if len(repeated):
        token, position = repeated[0].tolist()
        first, slot = order[token, position : position + 2].tolist()
        allowed = f"an expert not named earlier in the row (slot {first} has it)"
        raise ProblemError(f"{name}, token {token}, slot {slot}", int(idx[token, slot]), allowed)


def route(problem: Problem, topk_idx: Sequence[torch.Tensor]) -> Routing:
    """Group the (token, slot) pairs of all ranks by expert.

    `topk_idx` is, per rank, int64 or int32 [T_r, topk]; -1 masks a slot, the other entries of a row are distinct global experts.  Tokens of
    a rank are in ascending order; in the kernel atomics decide, and the layer's result must not depend on it.

    Raises `ProblemError` on a wrong number of ranks, dtype or shape, and on an expert out of range or repeated in a row, naming rank,
    token, slot and value.
    """
    problem.check_ranks("topk_idx", topk_idx)
    topk_idx = [idx.cpu() for idx in topk_idx]
    for rank, idx in enumerate(topk_idx):
        _check_topk_idx(problem, rank, idx)
    slots = tuple(tuple((idx == expert).nonzero() for idx in topk_idx) for expert in range(problem.num_experts))
    counts = torch.tensor([[len(pairs) for pairs in per_rank] for per_rank in slots], dtype=torch.int64, device="cpu")
    return Routing(slots, counts)


def dispatch_order(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Order in which one expert pulls its tokens, given how many each rank sends: round robin over the ranks by min-peeling.

    Each round takes as many tokens from every rank that still has some as the shortest of them has; inside a round ranks alternate in
    ascending order. Entry i, (rank, index within that rank's list), is row i of the expert in the pool. Source: article section 4.1.6.3.
    Raises ValueError on a negative count.
    """
    if any(count < 0 for count in counts):
        raise ValueError(f"counts: {list(counts)}, allowed: 0 and above")
    order: list[tuple[int, int]] = []
    taken = 0
    while active := [rank for rank, count in enumerate(counts) if count > taken]:
        shortest = min(counts[rank] for rank in active)
        order += [(rank, index) for index in range(taken, shortest) for rank in active]
        taken = shortest
    return order


def expert_rows(routing: Routing, expert: int) -> torch.Tensor:
    """Rows of one global expert in pool order: int64 [n, 3], source rank, token, top-k slot.  The kernel writes the same triple to
    `token_src_metadata`; which token of a rank stands at which of that rank's rows is the reference's choice (see `route`)."""
    order = dispatch_order(routing.counts[expert].tolist())
    slots = [pairs.tolist() for pairs in routing.slots[expert]]
    rows = [[rank, *slots[rank][index]] for rank, index in order]
    return torch.tensor(rows, dtype=torch.int64, device="cpu").reshape(-1, 3)
