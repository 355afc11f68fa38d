"""Random cases, and random weights and tokens of single ranks of large layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, SupportsIndex

import torch

from megamoe_dsl.cases.generators import CaseError, check_linear1, exact_weights, exact_x, normal_weights, normal_x, thin_linear2
from megamoe_dsl.cases.routing import bias_of_rank, check_mask, check_tokens, draw_experts, random_routing, routing_bias
from megamoe_dsl.problem import Problem, integer_between
from megamoe_dsl.quant import BIAS_NAMES, ExpertWeights, checkpoint_layout
from megamoe_dsl.reference import Accumulate, LayerInputs, MoeResult, activate, error_bound, linear1, mega_moe_stages, requantize, route
from megamoe_dsl.reference.moe import ExpertInputs

from ..cuda_device import require_usable

_MAX_REDRAWS = 200
_MARGIN = 2.0**-20  # of a relative error, beside rounding boundaries
_LOWEST_SEED, _HIGHEST_SEED = -(1 << 63), (1 << 64) - 1  # what a torch generator takes
_RANKS_APART = 1_000_003  # between the generators of a rank for two seeds


@dataclass(frozen=True)
class Case(LayerInputs):
    """Inputs of a layer, with the expected result.

    exact  any FP32 accumulation order gives the reference's bits
    """

    exact: bool

    def reference(self, accumulate: Accumulate = torch.float64) -> MoeResult:
        return mega_moe_stages(self, accumulate)

    def bound(self) -> list[torch.Tensor]:
        """Per rank float64 [T_r, H]: zeros for an exact case, else `reference.error_bound`."""
        if self.exact:
            return [torch.zeros(len(x), self.problem.hidden, dtype=torch.float64, device=x.device) for x in self.x]
        return error_bound(self)

    def to(self, device: torch.device | str) -> Case:
        tensors: dict[str, Any] = {
            name: [one.to(device) for one in getattr(self, name)] for name in ("x", "x_sf", "topk_idx", "topk_weights")
        }
        return replace(self, **tensors, weights=[one.map(lambda tensor: tensor.to(device)) for one in self.weights])


def random_case(
    problem: Problem,
    tokens: Sequence[SupportsIndex],
    seed: SupportsIndex,
    mask: float = 0.0,
    skew: bool = False,
    exact: bool = True,
    target_expert: SupportsIndex | None = None,
    progress: Callable[[str], None] | None = None,
) -> Case:
    """Inputs for every rank of a layer.

    tokens                     of each rank, 0 allowed
    seed                       equal seeds give equal cases; from -2^63 to 2^64 - 1
    mask, skew, target_expert  see `random_routing`
    exact                      data whose result does not depend on FP32 summation order (module docstring); False draws normal data with
                               block magnitudes over several binades
    progress                   called with the name of each step before it runs, as in "weights of rank 2 of 8": large layers take minutes

    Raises `ProblemError` when an argument does not fit `problem`, or `seed` is out of range, and `CaseError` when `exact` data cannot be
    found (a shape far beyond the ones of the presets).
    """
    counts, number = check_draw(problem, tokens, seed, mask)
    generator = torch.Generator().manual_seed(number)
    tell = progress or (lambda step: None)
    topk_idx = random_routing(problem, counts, generator, mask, skew, target_expert)
    make_x, make_weights = (exact_x, exact_weights) if exact else (normal_x, normal_weights)
    x, x_sf = zip(*(make_x(problem, count, generator) for count in counts), strict=True)
    weights = []
    for rank in range(problem.num_ranks):
        tell(f"weights of rank {rank} of {problem.num_ranks}")
        weights.append(_with_biases(problem, make_weights(problem, generator), generator))
    topk_weights = [_topk_weights(idx.shape, generator) for idx in topk_idx]
    case = Case(problem, list(x), list(x_sf), topk_idx, topk_weights, weights, exact)
    if exact:
        for job in case.jobs(route(problem, topk_idx)):
            tell(f"exact sums of expert {job.expert} of {problem.num_experts}")
            check_linear1(problem, job)
            acts, acts_sf = _settle_topk_weights(case, job, generator)
            thin_linear2(job, acts, acts_sf)
    return case


def check_draw(problem: Problem, tokens: Sequence[SupportsIndex], seed: SupportsIndex, mask: float = 0.0) -> tuple[list[int], int]:
    """Tokens and the seed as ints.  Raises the `ProblemError` that `random_case` raises for these arguments, before anything is drawn."""
    check_mask(mask)
    return check_tokens(problem, tokens), integer_between("seed", seed, _LOWEST_SEED, _HIGHEST_SEED, "between -2^63 and 2^64 - 1")


def _with_biases(problem: Problem, weights: ExpertWeights, generator: torch.Generator) -> ExpertWeights:
    if not problem.biases:
        return weights
    layout, device = checkpoint_layout(problem), generator.device
    return replace(weights, **{name: torch.randn(layout[name][1], generator=generator, device=device) for name in BIAS_NAMES})


def _topk_weights(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(*shape, generator=generator, device=generator.device) * 0.75 + 0.25


def _settle_topk_weights(case: Case, job: ExpertInputs, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Redraw the top-k weights of fragile rows in `case`, or mask their slots where these weights have nothing to do with them; returns the
    Linear1 activations and scales of the job's rows."""
    gate_up = linear1(job.x, job.x_sf, job.own.fc1, job.own.fc1_sf, bias=job.own.fc1_bias, factors=job.own.factors)
    weight, p = job.weight.clone(), case.problem
    for _ in range(_MAX_REDRAWS):
        values = activate(p, gate_up, None if job.hidden_weight is None else weight)
        rows = fragile(values, p.recipe, job.hidden_factor).nonzero().flatten()
        if not len(rows):
            break
        if p.weigh_results:
            for rank, token, slot in job.rows[rows.cpu()].tolist():
                case.topk_idx[rank][token, slot] = -1
            break
        weight[rows] = _topk_weights([len(rows)], generator)
    else:
        raise CaseError(job.expert, f"{len(rows)} rows keep activations on a rounding boundary after {_MAX_REDRAWS} draws")
    for (rank, token, slot), value in zip(job.rows.tolist(), weight, strict=True):
        case.topk_weights[rank][token, slot] = value
    return requantize(values, p.recipe, job.hidden_factor)


def fragile(values: torch.Tensor, recipe: str, factor: torch.Tensor | None = None) -> torch.Tensor:
    """Rows of `values` (float32 [n, I]) whose codes or scales (`requantize`) change when the values move by a relative 2^-20: bool [n]."""
    ends = zip(*(requantize(values * end, recipe, factor) for end in (1 - _MARGIN, 1 + _MARGIN)), strict=True)
    return torch.stack([(low.view(torch.uint8) != high.view(torch.uint8)).any(dim=1) for low, high in ends]).any(dim=0)


class TokenInputs(NamedTuple):
    """One rank's inputs of a layer: x, its scales, experts, and their weights."""

    x: torch.Tensor
    x_sf: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor


def _check_seed(seed: SupportsIndex) -> int:
    lowest, highest = _LOWEST_SEED // _RANKS_APART + 1, _HIGHEST_SEED // _RANKS_APART - 2  # room for the next seed, and for ranks
    return integer_between("seed", seed, lowest, highest, f"between -2^63 and 2^64 - 1 when multiplied by {_RANKS_APART}")


def _rank_generator(problem: Problem, rank: SupportsIndex, seed: int, device: torch.device | str) -> torch.Generator:
    last = problem.num_ranks - 1
    index = integer_between("rank", rank, 0, last, f"between 0 and num_ranks - 1 = {last}")
    return torch.Generator(require_usable(device)).manual_seed(seed * _RANKS_APART + index)


def random_weights(
    problem: Problem, rank: SupportsIndex, seed: SupportsIndex, device: torch.device | str = "cpu", exact: bool = False
) -> ExpertWeights:
    """Weights of one rank's experts, drawn on `device`: any process can draw those of any rank.

    Equal seeds give equal weights on devices of one kind; CPU and GPU draw different numbers.  `exact` is that of `random_case`, but
    Linear2 is not thinned: partial sums of 128 are exact, so FP32 additions in K order are those of the reference, in another order they
    may round differently.  Raises `ProblemError` when `rank` or `seed` is out of range.
    """
    generator = _rank_generator(problem, rank, _check_seed(seed), device)
    return _with_biases(problem, (exact_weights if exact else normal_weights)(problem, generator), generator)


def random_inputs(
    problem: Problem,
    rank: SupportsIndex,
    num_tokens: SupportsIndex,
    seed: SupportsIndex,
    device: torch.device | str = "cpu",
    mask: float = 0.0,
    skew: bool = False,
    exact: bool = False,
    remote: float | None = None,
) -> TokenInputs:
    """Tokens of one rank, drawn on `device`; with `skew` all ranks prefer the same experts.

    num_tokens  0 to max_tokens_per_rank
    mask, skew  see `random_routing`
    exact       as `random_case`, but top-k weights are not settled: a kernel whose exponential is a few ulp off may requantize a few
                activations in 10^5 to the neighboring code, which `error_bound(sums_exact=True)` allows for
    remote      about this fraction of the slots goes to experts of other ranks, 7/8 as on eight ranks; None: (R - 1) / R of R ranks

    `rank`, `seed` and `device` are those of `random_weights`.  Raises `ProblemError` when an argument does not fit `problem`.
    """
    count, start = problem.check_num_tokens(num_tokens), _check_seed(seed)
    generator = _rank_generator(problem, rank, start + 1, device)
    bias = routing_bias(problem, torch.Generator(device).manual_seed(start), skew)
    idx = draw_experts(problem, count, bias_of_rank(problem, int(rank), bias, remote), generator, mask)
    x, x_sf = (exact_x if exact else normal_x)(problem, count, generator)
    return TokenInputs(x, x_sf, idx, _topk_weights(idx.shape, generator))
