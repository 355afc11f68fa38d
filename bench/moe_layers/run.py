"""A point on a GPU: checked, then timed, all in one process and in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from call_times import time_host
from energy_per_call import joules_in_turns
from megamoe_dsl import choose
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.timing import REPEATS, time_graphs
from megamoe_dsl.blocks.gemm.problem import ROW_BLOCK, SORTED_BLOCKED
from megamoe_dsl.kernel_cases.gather import sorted_rows
from megamoe_dsl.kernels.expert_layer import ExpertLayer, LayerConfigs
from megamoe_dsl.kernels.expert_routing.problem import TopExpertsProblem
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights, dequantize_weight_e4m3
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from megamoe_dsl.runtime.experts import moe
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.preparation import compile_ahead, layer_kernels
from megamoe_dsl.runtime.top_experts import router_logits_of, top_experts
from megamoe_dsl.target import Target
from moe_layers.baselines import TORCH_LAYER, torch_top_experts
from moe_layers.inputs import TOLERANCE, DrawnCall, draw_weights
from moe_layers.other_way import Launch, OtherWay
from moe_layers.others import Bf16Weights, Sites, others
from moe_layers.point import FC1_VARIANTS, ExpertPoint
from moe_layers.steps import SteppedExperts
from moe_layers.trace import traced_config
from moe_layers.trials import Trials

CHOSEN = "ours, chosen"
HOST_TOKENS, HOST_REPEATS = 256, 11
"""Up to how many tokens the host is timed; with more it waits for room in the GPU's queue."""


def variants(point: ExpertPoint, target: Target) -> dict[str, LayerConfigs]:
    """The chosen configurations, and those with other tiles of Linear1."""
    chosen = point.layer.configs(target, point.tokens)
    others = {f"{one['block_m']} rows": point.layer.configs(target, point.tokens, **one) for one in FC1_VARIANTS}
    return {"chosen": chosen, **{name: configs for name, configs in others.items() if configs != chosen}}


def is_fused(point: ExpertPoint) -> bool:
    """Whether the fused kernel takes the layer."""
    return any(point.recipe in names for names in find_kernel("mega_moe").recipes.values())


def compile_points(points: tuple[ExpertPoint, ...], target: Target, folder: Path) -> int:
    """Compiles what the folder lacks; how many kernels."""
    wanted: set[Any] = {config for point in points for configs in variants(point, target).values() for config in configs}
    wanted |= {traced_config(one, target) for one in points}
    wanted |= {choose(TopExpertsProblem(one.layer.num_experts, one.layer.topk), target, 0) for one in points}
    for point in points:
        if is_fused(point):
            wanted |= set(layer_kernels(fused_problem(point.layer, point.tokens), target, ()))
    return compile_ahead(wanted, ArtifactStore(folder))


def fused_problem(layer: ExpertLayer, tokens: int, recipe: str = "") -> Problem:
    """A layer, in other number formats if they are given, as the fused kernel computes it on one rank."""
    return Problem(layer.hidden, layer.intermediate, layer.num_experts, layer.topk, 1, tokens, recipe=recipe or layer.recipe)


def fused_layer(call: ExpertCall, store: ArtifactStore) -> Launch:
    """The fused kernel with a call's weights, quantizing its tokens."""
    w = call.operands
    layer = MegaMoE(fused_problem(call.layer, call.tokens), ExpertWeights(w.w1, w.w1_sf, w.w2, w.w2_sf), store=store)
    return partial(layer, call.x, call.topk_idx, call.topk_weights)


def routed_layer(call: ExpertCall, router: torch.Tensor) -> torch.Tensor:
    """The call from tokens on: logits, experts chosen, and `moe`."""
    w = call.operands
    return moe(call.x, w.w1, w.w1_sf, w.w2, w.w2_sf, router=router, topk=call.layer.topk)


def bfloat16(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Weights of all experts in BF16; those that are, themselves."""
    if codes.dtype == torch.bfloat16:
        return codes
    made = torch.empty(codes.shape, dtype=torch.bfloat16, device=codes.device)
    for expert in range(len(codes)):
        made[expert] = dequantize_weight_e4m3(codes[expert], scales[expert])
    return made


@dataclass(frozen=True)
class Tried:
    """A point's call, and everything of ours and of others that runs."""

    point: ExpertPoint
    inputs: DrawnCall
    trials: Trials

    @property
    def outcome(self) -> dict[str, Any]:
        """What is known before anything is timed."""
        errors = self.trials.errors
        passed = all(error < TOLERANCE for error in errors.values())
        return {"point": str(self.point), "errors": errors, "passed": passed, "refused": self.trials.refused}

    def time(self, repeats: int = REPEATS, energy_turns: int = 0) -> dict[str, Any]:
        """The record: also times of every way and of the four launches, in so many turns, what rows take, and joules of whole layers."""
        point, call, launches = self.point, self.inputs.call, self.trials.launches
        times = time_graphs(launches, repeats)
        ends = call.ends.tolist()
        counts = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
        met = sum(count > 0 for count in counts)
        return {
            **self.outcome,
            "tokens": point.tokens,
            "flop": point.flop,
            "us": {name: asdict(one) for name, one in times.items()},
            "joules": self._joules({name: one.median for name, one in times.items()}, energy_turns),
            "experts_met": met,
            "hbm_bytes": point.hbm_bytes(met),
            "least_us": point.least_us(met, torch.cuda.get_device_name()),
            "host_us": self._host_times() if point.tokens <= HOST_TOKENS else {},
            "rows": {"tokens": point.tokens, "packed": sum(counts), SORTED_BLOCKED: sorted_rows(counts, ROW_BLOCK)[1]},
        }

    def _joules(self, us: dict[str, float], turns: int) -> dict[str, Any]:
        """Of a call of ours and of each library's fastest layer."""
        fastest = sorted(self.trials.errors, key=lambda name: (name != CHOSEN, us[name]))
        names = {name.split(maxsplit=1)[0]: name for name in reversed(fastest)}.values()
        found = joules_in_turns({name: self.trials.launches[name] for name in names}, us, turns) or {}
        return {name: asdict(one) for name, one in found.items()}

    def _host_times(self) -> dict[str, Any]:
        """Of calls of the operator, with experts chosen and with logits, of the torch layer, and of an addition in place."""
        call = self.inputs.call
        w = call.operands
        given = partial(moe, call.x, w.w1, w.w1_sf, w.w2, w.w2_sf)
        logits = torch.randn(call.tokens, call.layer.num_experts, device=call.x.device)
        calls: dict[str, Callable[[], Any]] = {
            "moe": partial(given, topk_idx=call.topk_idx, topk_weights=call.topk_weights),
            "moe, logits": partial(given, router_logits=logits, topk=call.layer.topk),
            "torch add_": partial(torch.zeros_like(call.x).add_, 1),
            **{name: launch for name, launch in self.trials.launches.items() if name == TORCH_LAYER},
        }
        return {name: asdict(times) for name, times in time_host(calls, repeats=HOST_REPEATS).items()}


def run_points(
    points: tuple[ExpertPoint, ...], target: Target, folder: Path, sites: Sites, record: Callable[[Tried], dict[str, Any]] = Tried.time
) -> Iterator[dict[str, Any]]:
    """A record of each point; models one after another."""
    for model in dict.fromkeys((point.name, point.recipe) for point in points):
        own = [point for point in points if (point.name, point.recipe) == model]
        weights = draw_weights(own[0].layer)
        as_bf16 = bfloat16(weights.w1, weights.w1_sf), bfloat16(weights.w2, weights.w2_sf)
        for point in own:
            yield record(try_point(point, target, ArtifactStore(folder), weights, as_bf16, sites))
        del weights, as_bf16
        torch.cuda.empty_cache()


def try_point(
    point: ExpertPoint, target: Target, store: ArtifactStore, weights: LayerOperands, as_bf16: Bf16Weights, sites: Sites
) -> Tried:
    """Ours with the chosen tiles and others, its launches, and what others have."""
    inputs = DrawnCall.draw(point.layer, point.tokens, weights)
    call, trials = inputs.call, Trials(inputs.error)
    found = {name: SteppedExperts(configs, store, call.x.device) for name, configs in variants(point, target).items()}
    for name, experts in found.items():
        trials.own(f"ours, {name}", partial(experts, call), whole=True)
        trials.own(f"fc1, {name}", partial(experts.fc1, call))
    chosen = found["chosen"]
    for name, launch in (("route", chosen.route), ("fc2", chosen.fc2), ("sum", chosen.sum)):
        trials.own(name, partial(launch, call))
    logits = torch.randn(call.tokens, call.layer.num_experts, device=call.x.device)
    trials.own("top_experts", partial(top_experts, logits, call.layer.topk))
    trials.own("torch topk, softmax", partial(torch_top_experts, logits, call.layer.topk))
    router = torch.randn(call.layer.num_experts, call.layer.hidden, device=call.x.device).bfloat16() * call.layer.hidden**-0.5
    trials.own("router", partial(router_logits_of, call.x, router))
    trials.own("router, ours", partial(routed_layer, call, router))
    if is_fused(point):
        trials.others("fused", lambda: {"fused": OtherWay(partial(fused_layer, call, store), whole=True)})
    for library, ways in others(point.name, call, chosen, as_bf16, sites).items():
        trials.others(library, ways)
    return Tried(point, inputs, trials)
