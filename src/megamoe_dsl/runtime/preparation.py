"""The kernels of a layer, the choice of one for a call, and compiling them in advance in parallel."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex

from ..artifact.cache import compile_ahead
from ..artifact.store import ArtifactStore
from ..blocks.gemm.problem import ALIGNED
from ..cuda_device import ALLOWED
from ..kernels.decode.family import few_configs
from ..kernels.expert_layer import ExpertLayer
from ..kernels.expert_routing.problem import TopExpertsProblem
from ..kernels.kernel import KernelConfig
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.family import PreDispatchKernel
from ..kernels.moe.halves.config import RoutingTablesConfig
from ..kernels.moe.unfused.family import stage_configs
from ..kernels.registry import choose, find_kernel
from ..problem import Problem, ProblemError, integer_between
from ..shared_experts import SharedExperts
from ..target import Target, target_at_hand


def even_sms(present: int, reserved: int = 0) -> int:
    """CTAs of a grid: one per unreserved SM, rounded down to an even number.  Raises `ProblemError` for fewer than two."""
    most = present - 2
    return (present - integer_between("reserved_sms", reserved, 0, most, f"between 0 and {most}")) // 2 * 2


def target_or_at_hand(target: Target | None = None) -> Target:
    """A GPU, by default the one at hand.  Raises `ProblemError` where there is none."""
    if found := target or target_at_hand():
        return found
    raise ProblemError("target", None, f"a Target, or {ALLOWED}")


def grid_target(target: Target | None, reserved: int = 0) -> Target:
    """A GPU, by default the one at hand, with the number of SMs that a layer uses."""
    gpu = target_or_at_hand(target)
    return replace(gpu, num_sms=even_sms(gpu.num_sms, reserved))


class Selection:
    """Bounds to prepare kernels for: those given, and the problem's capacity.  Raises `ProblemError` for one out of range.

    The best tile depends on the number of tokens that a rank receives from all ranks, so the choice depends on `num_tokens_bound`, at least
    the tokens of every rank.  Different bounds on different ranks still give correct results.
    """

    def __init__(self, problem: Problem, bounds: Sequence[SupportsIndex] = ()) -> None:
        self.problem = problem
        most = problem.max_tokens_per_rank
        if not isinstance(bounds, Iterable):
            raise ProblemError("bounds", bounds, "several integers, as in [32, 512]")
        given = [integer_between("bounds", bound, 1, most, f"between 1 and max_tokens_per_rank = {most}") for bound in bounds]
        self.bounds = sorted({*given, most})

    def configs(self, target: Target, **fields: Any) -> dict[int, MegaMoeConfig]:
        """The configuration for each bound, with these fields; neighbors may share one."""
        return {bound: find_kernel("mega_moe").choose(self.problem, target, bound, **fields) for bound in self.bounds}

    def select(self, num_tokens: int, num_tokens_bound: int | None = None) -> int:
        """The smallest prepared bound of at least `num_tokens_bound`, by default the capacity.  Raises `ProblemError` for a
        num_tokens_bound below this rank's tokens or above the capacity."""
        capacity = self.problem.max_tokens_per_rank
        if num_tokens_bound is None:
            return capacity
        if not num_tokens <= num_tokens_bound <= capacity:
            allowed = f"between this rank's {num_tokens} tokens and max_tokens_per_rank = {capacity}"
            raise ProblemError("num_tokens_bound", num_tokens_bound, allowed)
        return self.bounds[bisect_left(self.bounds, num_tokens_bound)]


def layer_kernels(
    problem: Problem,
    target: Target,
    bounds: Sequence[int] | None = None,
    *,
    bf16_inputs: bool = True,
    fused: bool = True,
    shared_experts: int = 0,
    pool_rows: int | None = None,
) -> list[KernelConfig]:
    """Kernels of a `MegaMoE` on a GPU: for `bounds` and the capacity, or for every number of tokens, and pre-dispatch kernels."""
    whole = SharedExperts(problem, shared_experts).whole
    tried = range(1, problem.max_tokens_per_rank + 1) if bounds is None else bounds
    tiers = dict.fromkeys(Selection(whole, tried).configs(target, pool_rows=pool_rows).values())
    kernels: list[KernelConfig] = [*tiers] if fused else [stage for tier in tiers for stage in stage_configs(tier)]
    quantized = (True, False) if bf16_inputs else (True,)
    kernels += few_configs(problem, target, fused=fused, bf16_inputs=bf16_inputs, shared_experts=shared_experts)
    common = {"shared": shared_experts, "pool_rows": pool_rows}
    return [*kernels, *(PreDispatchKernel().choose(whole, target, 0, quantized=one, **common) for one in quantized)]


def halves_kernels(
    problem: Problem,
    target: Target,
    dispatch: Mapping[str, Any] | None = None,
    combine: Mapping[str, Any] | None = None,
    train: bool = False,
) -> list[Any]:
    """Kernels of an `EpMoE` on a GPU; with `train` also of its backward pass."""
    tokens = problem.max_tokens_per_rank
    first = find_kernel("dispatch_grouped_gemm").choose(problem, target, tokens, **(dispatch or {}))
    second = find_kernel("grouped_gemm_combine").choose(problem, target, tokens, **(combine or {}))
    found = [first, second, RoutingTablesConfig.of(first)]
    if train:
        own = ExpertLayer(problem.hidden, problem.intermediate, problem.experts_per_rank, 1, recipe=problem.recipe)
        sums = own.backward(kind=ALIGNED)[-2:]
        found += first.replace(trains=True), first.backward, second.backward, *(choose(one, target, tokens) for one in sums)
    return list(dict.fromkeys(found))


def expert_kernels(
    layer: ExpertLayer, target: Target, tokens: Iterable[int], router: TopExpertsProblem | None = None
) -> list[KernelConfig]:
    """Kernels of `moe` with these numbers of tokens on a GPU, and of its `router`."""
    chosen: list[KernelConfig] = [] if router is None else [choose(router, target, 0)]
    return list(dict.fromkeys([*chosen, *(one for number in tokens for one in layer.kernels(target, number))]))


def prepare_moe(
    layer: ExpertLayer,
    most_tokens: int,
    *,
    router: TopExpertsProblem | None = None,
    target: Target | None = None,
    store: ArtifactStore | None = None,
    jobs: int | None = None,
) -> int:
    """Compiles the kernels of `moe` for 1 to `most_tokens` tokens in advance; returns how many were missing.

    layer   the layer of the calls: `ExpertLayer(hidden, intermediate, num_experts, topk)`, with its recipe and activation
    router  for calls with router_logits
    target  the GPU, by default the one at hand
    store   by default the cache, which `moe` uses

    Raises as `compile_ahead`, and `ProblemError`.
    """
    most = integer_between("most_tokens", most_tokens, 1, 1 << 30, "at least 1")
    return compile_ahead(expert_kernels(layer, target_or_at_hand(target), range(1, most + 1), router), store, jobs)
