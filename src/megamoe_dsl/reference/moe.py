"""The whole layer over all ranks, joined from `routing` and `stages`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import SCALE_BLOCK, ExpertWeights
from megamoe_dsl.reference.routing import Routing, expert_rows, route
from megamoe_dsl.reference.stages import combine, linear1, linear2, requantize, swiglu


@dataclass(frozen=True)
class MoeResult:
    """Output and intermediates, one list entry per source rank; intermediates of masked slots are zero.

    Attributes:
        y: bfloat16 [T_r, H].
        acts: float8_e4m3fn [T_r, topk, I], the requantised L1 activations.
        acts_sf: uint8 [T_r, topk, I/32].
        outputs: bfloat16 [topk, T_r, H], the combine buffer.
        routing: which rows each expert received.
    """

    y: list[torch.Tensor]
    acts: list[torch.Tensor]
    acts_sf: list[torch.Tensor]
    outputs: list[torch.Tensor]
    routing: Routing


def _require(field: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise ProblemError(field, f"{tensor.dtype} {tuple(tensor.shape)}", f"{dtype} {shape}")


def check_inputs(
    problem: Problem,
    x: Sequence[torch.Tensor],
    x_sf: Sequence[torch.Tensor],
    topk_idx: Sequence[torch.Tensor],
    topk_weights: Sequence[torch.Tensor],
    weights: Sequence[ExpertWeights],
) -> Routing:
    """Check shapes, dtypes and routing of all ranks; arguments and errors as `mega_moe`. Returns the routing."""
    for field, given in (("x", x), ("x_sf", x_sf), ("topk_weights", topk_weights), ("weights", weights)):
        if len(given) != problem.num_ranks:
            raise ProblemError(f"len({field})", len(given), f"num_ranks = {problem.num_ranks}")
    routing = route(problem, topk_idx)
    for rank, idx in enumerate(topk_idx):
        tokens = idx.shape[0]
        _require(f"x[{rank}]", x[rank], torch.float8_e4m3fn, (tokens, problem.hidden))
        _require(f"x_sf[{rank}]", x_sf[rank], torch.uint8, (tokens, problem.hidden // SCALE_BLOCK))
        _require(f"topk_weights[{rank}]", topk_weights[rank], torch.float32, (tokens, problem.topk))
        weights[rank].validate(problem)
    return routing


@dataclass(frozen=True)
class ExpertInputs:
    """What one expert works on: rows int64 [n, 3] (rank, token, slot), x and x_sf of those rows, top-k weight per row, its weights."""

    expert: int
    rows: torch.Tensor
    x: torch.Tensor
    x_sf: torch.Tensor
    weight: torch.Tensor
    l1: torch.Tensor
    l1_sf: torch.Tensor
    l2: torch.Tensor
    l2_sf: torch.Tensor


def expert_inputs(
    problem: Problem,
    routing: Routing,
    x: Sequence[torch.Tensor],
    x_sf: Sequence[torch.Tensor],
    topk_weights: Sequence[torch.Tensor],
    weights: Sequence[ExpertWeights],
) -> Iterator[ExpertInputs]:
    """The inputs of every expert that received tokens, in expert order, rows in pool order."""
    for expert in range(problem.num_experts):
        rows = expert_rows(routing, expert)
        if not len(rows):
            continue
        places = [tuple(row) for row in rows.tolist()]
        owner, local = divmod(expert, problem.experts_per_rank)
        own = weights[owner]
        yield ExpertInputs(
            expert=expert,
            rows=rows,
            # float8 tensors cannot be stacked on every torch build; their bytes can.
            x=torch.stack([x[rank].view(torch.uint8)[token] for rank, token, _ in places]).view(torch.float8_e4m3fn),
            x_sf=torch.stack([x_sf[rank][token] for rank, token, _ in places]),
            weight=torch.stack([topk_weights[rank][token, slot] for rank, token, slot in places]),
            l1=own.l1[local],
            l1_sf=own.l1_sf[local],
            l2=own.l2[local],
            l2_sf=own.l2_sf[local],
        )


def mega_moe_stages(
    problem: Problem,
    x: Sequence[torch.Tensor],
    x_sf: Sequence[torch.Tensor],
    topk_idx: Sequence[torch.Tensor],
    topk_weights: Sequence[torch.Tensor],
    weights: Sequence[ExpertWeights],
    accumulate: torch.dtype = torch.float64,
) -> MoeResult:
    """As `mega_moe`, with the intermediates; `accumulate` as in `stages.scaled_matmul`."""
    routing = check_inputs(problem, x, x_sf, topk_idx, topk_weights, weights)
    tokens = [idx.shape[0] for idx in topk_idx]
    k, h, i = problem.topk, problem.hidden, problem.intermediate
    acts = [torch.zeros(t, k, i, dtype=torch.uint8) for t in tokens]
    acts_sf = [torch.zeros(t, k, i // SCALE_BLOCK, dtype=torch.uint8) for t in tokens]
    outputs = [torch.zeros(k, t, h, dtype=torch.bfloat16) for t in tokens]
    for job in expert_inputs(problem, routing, x, x_sf, topk_weights, weights):
        gate_up = linear1(job.x, job.x_sf, job.l1, job.l1_sf, accumulate)
        values, values_sf = requantize(swiglu(gate_up, job.weight, problem.activation_clamp, problem.fast_math))
        out = linear2(values, values_sf, job.l2, job.l2_sf, accumulate)
        for rank in job.rows[:, 0].unique().tolist():
            mine = job.rows[:, 0] == rank
            token, slot = job.rows[mine, 1], job.rows[mine, 2]
            acts[rank][token, slot] = values.view(torch.uint8)[mine]
            acts_sf[rank][token, slot] = values_sf[mine]
            outputs[rank][slot, token] = out[mine]
    y = [combine(out, idx) for out, idx in zip(outputs, topk_idx, strict=True)]
    return MoeResult(y, [a.view(torch.float8_e4m3fn) for a in acts], acts_sf, outputs, routing)


def mega_moe(
    problem: Problem,
    x: Sequence[torch.Tensor],
    x_sf: Sequence[torch.Tensor],
    topk_idx: Sequence[torch.Tensor],
    topk_weights: Sequence[torch.Tensor],
    weights: Sequence[ExpertWeights],
) -> list[torch.Tensor]:
    """The MoE layer of all ranks, bit by bit as `stages` defines it.

    Args:
        problem: shapes and numerics.
        x: per rank float8_e4m3fn [T_r, H].
        x_sf: per rank uint8 UE8M0 [T_r, H/32].
        topk_idx: per rank int64 [T_r, topk], global experts, -1 masked.
        topk_weights: per rank float32 [T_r, topk].
        weights: per rank `ExpertWeights` in checkpoint order (not transformed), rows [gate | up].

    Returns:
        Per rank bfloat16 [T_r, H].

    Raises:
        ProblemError: on routing errors (see `route`) and tensors that do not fit `problem`, naming field, value and what is allowed.
        ValueError: from `ExpertWeights.validate`, and when an activation becomes infinite.
    """
    return mega_moe_stages(problem, x, x_sf, topk_idx, topk_weights, weights).y
