"""The layer within one NVLink domain: which launches compute it, and on CPU tensors the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from typing import Any

import torch

from ..arch import SM90, Arch
from ..blocks.gemm.problem import SCALE_BLOCK
from ..kernels.expert_routing.config import ROUTED
from ..kernels.registry import find_kernel
from ..problem import CHANNEL_STEP, Problem, ProblemError
from ..quant import ExpertWeights
from ..reference import activate
from ..tuned import LaunchShare, tuned_launches
from .buffers import check_weights
from .ep.layer import EpMoE
from .experts import moe
from .gemm_weights import gemm_weights
from .layer import MegaMoE, gpu_name
from .symmetric_memory import SymmetricBuffer, device_arch

MOE, MEGA_MOE, EP_MOE = "moe", "mega_moe", "ep_moe"
LAUNCHES = (MOE, MEGA_MOE, EP_MOE)
"""`moe`, whose launches follow one another on one GPU; the fused launch of `MegaMoE`; the two of `EpMoE`."""


@dataclass(frozen=True)
class DomainLayer:
    """A layer, and whether calls may have `x_sf` and `num_tokens_bound`."""

    experts: torch.nn.Module
    takes_scales: bool = False
    takes_bound: bool = False


class MoeLaunches(torch.nn.Module):
    """All experts of a problem on one device, by `moe`.  It uses the weights as they are, but on SM100 keeps words of their scales."""

    def __init__(self, problem: Problem, weights: ExpertWeights) -> None:
        super().__init__()
        self.problem, w = problem, weights
        pairs = {"w1": (w.fc1, w.fc1_sf), "w2": (w.fc2, w.fc2_sf)}
        if problem.formats.scales_in_mma:
            gate_up = {"w1": "gate_first", "w2": ""}
            pairs = {name: gemm_weights(*pair, gate_up=gate_up[name]) for name, pair in pairs.items()}
        scaled = problem.formats.scaled
        self._given: dict[str, Any] = {name: codes for name, (codes, _) in pairs.items()}
        self._given |= {f"{name}_sf": scales if scaled else None for name, (_, scales) in pairs.items()}
        self._given |= {"w1_bias": w.fc1_bias, "w2_bias": w.fc2_bias}
        self._given |= {"activation": problem.activation, "activation_clamp": problem.activation_clamp}

    def forward(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, **others: Any) -> torch.Tensor:
        """y; a bound of tokens chooses nothing here."""
        return moe(x, topk_idx=topk_idx, topk_weights=topk_weights, **self._given)


def takes_moe(problem: Problem, arch: Arch) -> bool:
    """Whether `moe` computes such a layer, all of whose experts are on one GPU, on an architecture."""
    unscaled_odd = not problem.formats.scaled and arch == SM90
    step = CHANNEL_STEP if unscaled_odd else SCALE_BLOCK
    shaped = problem.hidden % step == 0 and problem.intermediate % step == 0 and not (problem.biases and arch != SM90)
    return problem.num_ranks == 1 and problem.recipe in ROUTED[arch.name] and shaped


def choose_launch(problem: Problem, arch: Arch, gpu: str, tokens: int) -> str:
    """One of `LAUNCHES` for a rank's `tokens`: where `moe` and the fused launch both take the layer, the one that was faster at the nearest
    measured point of the GPU (tuned/), and the fused one where none is near."""
    fused = problem.recipe in find_kernel(MEGA_MOE).recipes[arch.name]
    if not takes_moe(problem, arch):
        return MEGA_MOE if fused else EP_MOE
    if not fused:
        return MOE
    share = LaunchShare(problem.hidden, problem.intermediate, problem.num_experts, problem.topk, problem.recipe)
    measured = tuned_launches(gpu).by_share.get(share, ())
    if not measured or not tokens:
        return MEGA_MOE
    nearest = min(measured, key=lambda one: abs(log(one.tokens / tokens)))
    return min(nearest.us, key=lambda name: nearest.us[name])


def domain_layer(
    problem: Problem,
    weights: ExpertWeights | None,
    group: Any,
    device: torch.device,
    launch: str | None = None,
    activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
    tokens: int = 0,
    **options: Any,
) -> DomainLayer:
    """A layer of `problem.num_ranks` ranks of a group, as one of `LAUNCHES` computes it; `options` are those of its class.

    activation  the caller's own, of `EpMoE`.  Without one `EpMoE` computes the problem's

    CPU tensors: every rank gathers the weights of all ranks and computes its own tokens, so that no rank waits for another in a call.
    Raises `ProblemError` for a launch that does not take the layer, and as its class does.
    """
    if launch is not None and launch not in LAUNCHES:
        raise ProblemError("launch", launch, "one of " + ", ".join(LAUNCHES))
    if device.type == "cpu":
        if activation is not None:
            raise ProblemError("activation", activation, "None on the CPU")
        return cpu_layer(problem, weights, group, launch)
    arch = device_arch(device)
    chosen = EP_MOE if activation is not None else launch or choose_launch(problem, arch, gpu_name(device), tokens)
    if chosen == MEGA_MOE:
        return DomainLayer(MegaMoE(problem, weights, group=group, **options), True, True)
    if options or weights is None:
        raise ProblemError("weights" if weights is None else ", ".join(options), None, f"given, and no option, with launch = {chosen!r}")
    if chosen == MOE:
        if not takes_moe(problem, arch):
            raise ProblemError(
                "launch", launch, f"another: moe takes no {problem.recipe} layer of {problem.num_ranks} ranks and these sizes"
            )
        return DomainLayer(MoeLaunches(problem, weights))
    return DomainLayer(EpMoE(problem, weights, group=group, activation=activation or GatedRows(problem)), problem.formats.scaled)


class GatedRows(torch.nn.Module):
    """A problem's activation of rows of Linear1, bf16 [rows, 2 intermediate]."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Activated rows, bf16 [rows, intermediate]."""
        return activate(self.problem, rows.float(), None).bfloat16()


def cpu_layer(problem: Problem, weights: ExpertWeights | None, group: Any, launch: str | None) -> DomainLayer:
    """One rank's layer of all experts of a domain."""
    alone = replace(problem, num_ranks=1)
    if weights is None and problem.num_ranks > 1:
        raise ProblemError("weights", None, "given for several ranks on the CPU")
    if weights is not None:
        check_weights(problem, weights)
    every = weights if weights is None or problem.num_ranks == 1 else gathered(weights, group, problem.num_ranks)
    if every is not None and (launch == MOE or not problem.formats.scaled):
        return DomainLayer(MoeLaunches(alone, every))
    layer = MegaMoE(alone, every, symmetric=SymmetricBuffer.allocate(alone, device="cpu"))
    return DomainLayer(layer, True, True)


def gathered(weights: ExpertWeights, group: Any, ranks: int) -> ExpertWeights:
    """The experts of all ranks of a group, in the order of ranks."""
    import torch.distributed as dist

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        own = tensor.contiguous().view(torch.uint8) if tensor.numel() else tensor
        parts = [torch.empty_like(own) for _ in range(ranks)]
        if own.numel():
            dist.all_gather(parts, own, group=group)
        return torch.cat(parts).view(tensor.dtype)

    return weights.map(gather)
