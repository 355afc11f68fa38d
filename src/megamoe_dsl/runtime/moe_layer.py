"""A MoE layer for one GPU, the GPUs of an NVLink domain, or several nodes of them; with CPU tensors too.

    layer = MoE(problem, weights)                                  one device
    layer = MoE(problem, weights, group=group)                     every rank of a process group, on one node or several
    y = layer(x, topk_idx, topk_weights)

`MoE` chooses the launches: `moe`, `MegaMoE` or `EpMoE` within a domain, and between domains torch.distributed (nodes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from math import log
from typing import Any, Self, cast

import torch
import torch.distributed as dist

from ..arch import SM90, Arch
from ..blocks.gemm.problem import SCALE_BLOCK
from ..cuda_device import require_usable
from ..kernels.registry import find_kernel
from ..problem import CHANNEL_STEP, Problem, ProblemError
from ..quant import ExpertWeights
from ..recipe import F32
from ..reference import activate
from ..shared_experts import SharedExperts
from ..target import Target
from ..tuned import LaunchEntry, tuned_table
from .buffers import check_layout, check_weights
from .custom_op import check_no_gradient, takes_tensors
from .device_gemm import gpu_target
from .ep.layer import EpMoE
from .experts import moe
from .gemm_scales import gemm_weights
from .layer import MegaMoE
from .nodes import NETWORK_SMS, NodeLayer, Traffic, default_chunks, node_problem, rails_of, ranks_of_a_domain
from .symmetric_memory import SymmetricBuffer, arch_of_recipe, device_arch, process_group
from .top_experts import router_logits_of, top_experts

MOE, MEGA_MOE, EP_MOE, DEEP_EP = "moe", "mega_moe", "ep_moe", "deep_ep"
LAUNCHES = (MOE, MEGA_MOE, EP_MOE, DEEP_EP)
"""`moe` (four launches, one GPU), `MegaMoE` (one launch), `EpMoE` (two launches), `DeepEpMoE` (DeepEP's kernels, any nodes)."""


class MoeLaunches(torch.nn.Module):
    """All experts of a problem on one device, by `moe`.  It reads the caller's weights; on SM100 it keeps a copy of their scales as words.
    BF16 weights without biases have gradients."""

    takes_scales = takes_bound = False

    def __init__(self, problem: Problem, weights: ExpertWeights, arch: Arch) -> None:
        """`arch` is the GPU's, or the one that CPU tensors imitate.  Raises `ProblemError` for a layer that `moe` does not compute."""
        super().__init__()
        if not takes_moe(problem, arch):
            allowed = f"another: moe takes no {problem.recipe} layer of {problem.num_ranks} ranks and these sizes"
            raise ProblemError("launch", MOE, allowed)
        self.problem, w, scaled = problem, weights, problem.formats.scaled
        self.trained: tuple[torch.Tensor, ...] = () if scaled or problem.biases or problem.activation_clamp is not None else (w.fc1, w.fc2)
        self._given: dict[str, Any] = {"activation": problem.activation, "activation_clamp": problem.activation_clamp}
        self._given["recipe"] = problem.recipe if scaled else None  # beside BF16 weights it would be what a pass quantizes
        if w.factors is not None:
            self._given["factors"] = w.factors.T.contiguous()
        for name, gate_up, codes, scales, bias in (
            ("w1", "gate_first", w.fc1, w.fc1_sf, w.fc1_bias),
            ("w2", "", w.fc2, w.fc2_sf, w.fc2_bias),
        ):
            if problem.formats.scales_in_mma:
                codes, scales = gemm_weights(codes, scales, arch, gate_up=gate_up)
            self._given |= {name: codes, f"{name}_sf": scales if scaled else None, f"{name}_bias": bias}

    def forward(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, **others: Any) -> torch.Tensor:
        """y; `others`, such as `num_tokens_bound`, are ignored."""
        return moe(x, topk_idx=topk_idx, topk_weights=topk_weights, **self._given)


class DeepEpMoE(torch.nn.Module):
    """Dispatch and combine by DeepEP's low-latency kernels (github.com/deepseek-ai/DeepEP), the experts of a rank by one launch of
    `MegaMoE`.  With few tokens and several nodes this is faster than collectives.

    buffer   a `deep_ep.Buffer` in low-latency mode, which layers may share; None makes one, together with all ranks of `group`
    options  of `MegaMoE`

    Raises `ProblemError` where `deep_ep` cannot be imported, and as `MegaMoE`.
    """

    takes_scales = takes_bound = False
    trained: tuple[torch.Tensor, ...] = ()

    def __init__(self, problem: Problem, weights: ExpertWeights, *, group: Any, buffer: Any = None, **options: Any) -> None:
        super().__init__()
        try:
            deep_ep = import_module("deep_ep")
        except ImportError as error:
            raise ProblemError("launch", "deep_ep", f"another: {error}") from error
        tokens, experts, ranks = problem.max_tokens_per_rank, problem.experts_per_rank, problem.num_ranks
        if buffer is None:
            size = deep_ep.Buffer.get_low_latency_rdma_size_hint(tokens, problem.hidden, ranks, problem.num_experts)
            buffer = deep_ep.Buffer(group, 0, size, low_latency_mode=True, num_qps_per_rank=experts)
        self.problem, self.buffer, self.quantizes = problem, buffer, problem.formats.activations.scale != F32
        # DeepEP gives each expert room for all tokens of all ranks; unused rows are masked tokens.
        own = replace(problem, num_experts=experts, topk=1, num_ranks=1, max_tokens_per_rank=experts * ranks * tokens)
        self.experts = MegaMoE(own, weights, symmetric=SymmetricBuffer.allocate(own, device=weights.fc1.device), **options)

    def forward(
        self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, *, num_tokens_bound: int | None = None
    ) -> torch.Tensor:
        """y of this rank's tokens, without host synchronization; `num_tokens_bound` is ignored.  Raises `ProblemError`."""
        check_no_gradient(("x", "topk_weights"), (x, topk_weights))
        problem, idx = self.problem, topk_idx.long()
        check_layout(problem, "", x, None, topk_idx, topk_weights)
        found, counts, handle, *_ = self.buffer.low_latency_dispatch(
            x, idx, problem.max_tokens_per_rank, problem.num_experts, use_fp8=not self.quantizes
        )
        rows, scales = (found, None) if self.quantizes else (found[0], found[1].flatten(0, 1).contiguous())
        experts, room = rows.shape[:2]
        filled = torch.arange(room, device=x.device) < counts[:, None]
        of_row = torch.arange(experts, device=x.device)[:, None].where(filled, -1).view(-1, 1)
        y = self.experts(rows.flatten(0, 1), of_row, torch.ones(of_row.shape, device=x.device), x_sf=scales)
        return cast(torch.Tensor, self.buffer.low_latency_combine(y.view(experts, room, -1), idx, topk_weights, handle)[0])


def takes_moe(problem: Problem, arch: Arch) -> bool:
    """Whether `moe` computes the layer on an architecture: all experts on one GPU, a recipe and sizes that it supports."""
    step = CHANNEL_STEP if arch == SM90 and not problem.formats.scaled else SCALE_BLOCK
    shaped = not problem.hidden % step and not problem.intermediate % step and (arch == SM90 or not problem.biases)
    return problem.num_ranks == 1 and problem.recipe in find_kernel("gather_gemm").recipes[arch.name] and shaped


def takes_fused(problem: Problem, arch: Arch) -> bool:
    """Whether the fused launch may be chosen by default: not in BF16, where only the other launches have gradients."""
    return problem.formats.scaled and problem.recipe in find_kernel(MEGA_MOE).recipes[arch.name]


def choose_launch(problem: Problem, target: Target, tokens: int) -> str:
    """One of `LAUNCHES` for a rank's `tokens`.  If `moe` and `MegaMoE` both compute the layer: the faster one at the nearest measured point
    of the GPU (tuned/); without measurements `moe` for fp8xfp8, else `MegaMoE`."""
    fused = takes_fused(problem, target.arch)
    if not takes_moe(problem, target.arch):
        return MEGA_MOE if fused else EP_MOE
    if not fused:
        return MOE
    measured = tuned_table(str(target.gpu), LaunchEntry).by_share.get(LaunchEntry.share_of(problem), ())
    if not measured or not tokens:
        return MOE if problem.recipe == "fp8xfp8" else MEGA_MOE
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
) -> Any:
    """The layer of an NVLink domain of `problem.num_ranks` ranks by one of `LAUNCHES`; `options` are arguments of its class.  A caller's
    own `activation` needs `EpMoE`.  On the CPU every rank gathers all weights and computes its own tokens, so calls do not wait for others.

    Raises `ProblemError` for a launch that does not compute the layer, and as its class does."""
    if launch is not None and launch not in LAUNCHES:
        raise ProblemError("launch", launch, "one of " + ", ".join(LAUNCHES))
    if launch == DEEP_EP:
        if weights is None or activation is not None:
            raise ProblemError("launch", launch, "another without weights, and with an activation")
        return DeepEpMoE(problem, weights, group=group, **options)
    if device.type == "cpu":
        if activation is not None:
            raise ProblemError("activation", activation, "None on the CPU")
        if unknown := sorted(options.keys() - (MegaMoE.__init__.__kwdefaults__ or {}).keys()):
            raise ProblemError(unknown[0], options[unknown[0]], "left out: a layer has no such option")
        return cpu_layer(problem, weights, group, launch)
    target = gpu_target(device)
    chosen = EP_MOE if activation is not None else launch or choose_launch(problem, target, tokens)
    if weights is None and launch is None and activation is None:
        chosen = MEGA_MOE  # whose weights are loaded later
    if chosen == MEGA_MOE:
        return MegaMoE(problem, weights, group=group, **options)
    if options or weights is None:
        raise ProblemError("weights" if weights is None else ", ".join(options), None, f"given, and no option, with launch = {chosen!r}")
    if chosen == MOE:
        return MoeLaunches(problem, weights, target.arch)
    own = (lambda rows: activate(problem, rows.float(), None).bfloat16()) if problem.formats.scaled else None  # else kernels activate
    return EpMoE(problem, weights, group=group, activation=activation or own)


def cpu_layer(problem: Problem, weights: ExpertWeights | None, group: Any, launch: str | None) -> Any:
    """One rank's layer on CPU tensors, with the experts of all ranks of the domain."""
    alone = replace(problem, num_ranks=1)
    if weights is not None:
        check_weights(problem, weights)
        every = gathered(weights, group, problem.num_ranks)
        if launch == MOE or not problem.formats.scaled:
            found = MoeLaunches(alone, every, arch_of_recipe(alone))
            found.trained = found.trained if every is weights else ()
            return found
    elif problem.num_ranks > 1:
        raise ProblemError("weights", None, "given for several ranks on the CPU")
    return MegaMoE(alone, None if weights is None else every, symmetric=SymmetricBuffer.allocate(alone, device="cpu"))


def node_layer(
    problem: Problem,
    weights: ExpertWeights | None,
    group: Any,
    device: torch.device,
    ranks: int,
    chunks: int | None,
    router: Router | None,
    **others: Any,
) -> NodeLayer:
    """A layer over nodes of `ranks` ranks each; `others` as in `domain_layer`.  The default launch is `MegaMoE`, so that quantized rows
    travel.  With several chunks the launch reserves SMs for NCCL: without a free SM the exchange of the next chunk could not start, and the
    other ranks' launches would not end.  Raises `ProblemError`."""
    cuda, plain = device.type == "cuda", others["activation"] is None
    node_problem(problem, ranks)
    if cuda and plain and others["launch"] is None and takes_fused(problem, device_arch(device)):
        others["launch"] = MEGA_MOE
    fused = cuda and plain and others["launch"] == MEGA_MOE
    if chunks is None:
        groups = problem.topk if router is None or router.groups == 1 else router.topk_groups
        chunks = default_chunks(problem, ranks, others["tokens"] or problem.max_tokens_per_rank, groups) if fused else 1
    if chunks > 1 and fused:
        others.setdefault("reserved_sms", NETWORK_SMS)
    sms = others.get("reserved_sms", 0)
    if chunks > 1 and cuda and ranks > 1 and not sms:
        raise ProblemError("chunks", chunks, "1 on nodes of several GPUs, unless MegaMoE computes there and has reserved_sms")
    shared, rails = SharedExperts(problem, others.pop("shared_experts", 0)), rails_of(group, ranks, device, sms)
    own, beside = split_shared(shared, weights)
    inner, added = domain_layer(node_problem(problem, ranks, chunks), own, rails.within, device, **others), None
    others.pop("bounds", None)
    if shared.count:
        alone = replace(problem, num_experts=shared.count, topk=shared.count, num_ranks=1)
        added = domain_layer(alone, beside, None, device, **others)
    return NodeLayer(problem, inner, rails, chunks, added)


def split_shared(shared: SharedExperts, weights: ExpertWeights | None) -> tuple[ExpertWeights | None, ExpertWeights | None]:
    """A rank's routed experts and its shared ones."""
    if weights is None or not shared.count:
        return weights, None
    check_weights(shared.whole, weights)
    return weights.map(lambda one: one[: -shared.count]), weights.map(lambda one: one[-shared.count :])


def gathered(weights: ExpertWeights, group: Any, ranks: int) -> ExpertWeights:
    """The experts of all ranks of a group, in the order of ranks."""

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        own = tensor.contiguous().view(torch.uint8) if tensor.numel() else tensor
        parts = [torch.empty_like(own) for _ in range(ranks)]
        if own.numel():
            dist.all_gather(parts, own, group=group)
        return torch.cat(parts).view(tensor.dtype)

    return weights if ranks == 1 else weights.map(gather)


@dataclass(frozen=True)
class Router:
    """Chooses experts from tokens: FP32 logits from `weight`, bfloat16 or float32 [experts, H]; other fields as in `top_experts`."""

    weight: torch.Tensor
    scores: str = "softmax"
    bias: torch.Tensor | None = None
    groups: int = 1
    topk_groups: int = 1
    scale: float = 1.0
    hash_table: torch.Tensor | None = None
    replicas: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, topk: int, token_ids: torch.Tensor | None, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        choice = {name: getattr(self, name) for name in ("scores", "bias", "groups", "topk_groups", "scale", "hash_table", "replicas")}
        return top_experts(router_logits_of(x, self.weight), topk, token_ids=token_ids, replica_shift=rank, **choice)


class MoE(torch.nn.Module):
    """A layer of experts; every rank makes it with the same arguments but its own weights.

    problem      the layer over all ranks of the group
    weights      the rank's experts, in checkpoint order on its device; None for a `MegaMoE` that `load_experts` fills later
    group        a torch.distributed group of `problem.num_ranks` ranks; with several ranks the default group by default
    domain       number of consecutive ranks in an NVLink domain, by default the ranks of one host
    router       chooses the experts of calls without topk_idx
    activation   the caller's own, from rows [gate | up], bf16 [rows, 2I], to [rows, I]; computed between the launches of `EpMoE`
    launch       moe, mega_moe, ep_moe, or deep_ep for DeepEP's low-latency kernels over all nodes; by default the measured fastest of the
                 first three for `tokens` of a rank
    chunks       parts of a call's tokens on several nodes: the network moves one while another is computed, in `reserved_sms` SMs (16 by
                 default).  By default 2 if `tokens` tokens send more than 50 MB of a rank to other nodes, else 1
    options      of the class within a domain, such as `bounds`, `reserved_sms`, `shared_experts` or `watchdog_ns` of `MegaMoE`

    `traffic` counts what this rank sent to other nodes; None within one domain.  In BF16 `moe` and `EpMoE` have gradients; every rank then
    takes part in each backward pass.  Raises `ProblemError`, which names the argument.
    """

    def __init__(
        self,
        problem: Problem,
        weights: ExpertWeights | None = None,
        *,
        group: Any = None,
        domain: int | None = None,
        router: Router | None = None,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        launch: str | None = None,
        tokens: int = 0,
        chunks: int | None = None,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if router is not None and not isinstance(router, Router):
            raise ProblemError("router", type(router).__name__, "a Router, as in Router(weight)")
        if router is not None and router.replicas is None and len(router.weight) != problem.num_experts:
            raise ProblemError("router.weight.shape[0]", len(router.weight), f"num_experts = {problem.num_experts}")
        self.problem, self.router, self.rank, ranks = problem, router, 0, 1
        self.experts: Any
        self.traffic: Traffic | None = None
        fallback = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        self.device = place = require_usable(device) if device is not None else fallback if weights is None else weights.fc1.device
        if problem.num_ranks > 1:
            group = process_group(problem, group)
            self.rank = dist.get_rank(group)
            ranks = problem.num_ranks if launch == DEEP_EP else ranks_of_a_domain(group) if domain is None else domain
        others: dict[str, Any] = {"launch": launch, "activation": activation, **options}
        others["tokens"] = problem.check_num_tokens(tokens, "tokens")
        if ranks == problem.num_ranks:
            self.experts = domain_layer(problem, weights, group, place, **others)
        else:
            self.experts = node_layer(problem, weights, group, place, ranks, chunks, router, **others)
            self.traffic = self.experts.traffic

    @classmethod
    def of(
        cls,
        weights: ExpertWeights,
        topk: int,
        max_tokens: int,
        *,
        group: Any = None,
        fields: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> Self:
        """The layer of a rank's weights, whose shapes and dtypes give the `Problem`; `max_tokens` of each rank; `fields` override it."""
        ranks, packed = 1 if group is None else group.size(), weights.fc1.dtype == torch.uint8
        hopper = weights.fc1.is_cuda and device_arch(weights.fc1.device) == SM90
        by_dtype = {torch.bfloat16: "bf16xbf16", torch.uint8: "fp8xmxfp4" if hopper else "fp8xfp4"}
        experts, rows, width = weights.fc1.shape
        shape = {"hidden": width * 2 if packed else width, "intermediate": rows // 2, "num_experts": experts * ranks, "num_ranks": ranks}
        shape |= {"recipe": by_dtype.get(weights.fc1.dtype, "fp8xfp8"), "biases": weights.fc1_bias is not None}
        problem = Problem(**{**shape, "topk": topk, "max_tokens_per_rank": max_tokens, **(fields or {})})
        return cls(problem, weights, group=group, **others)

    def load_expert(self, index: int, weights: ExpertWeights) -> None:
        """Replaces one of the rank's experts in place; only `MegaMoE`, which keeps its own weights, can."""
        self.experts.load_expert(index, weights)

    @takes_tensors("x", optional=("topk_idx", "topk_weights", "token_ids"))
    def forward(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        *,
        token_ids: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """y, bfloat16 [T, H], of bfloat16 x [T, H].

        topk_idx      int64 or int32 [T, topk], -1 masks a slot; None: the router chooses, by `token_ids` if it has a hash table
        topk_weights  float32 or bfloat16 [T, topk]
        options       of the class within a domain, such as `num_tokens_bound`
        """
        if (topk_idx is None) != (topk_weights is None):
            raise ProblemError("topk_idx, topk_weights", None, "both given, or neither")
        if topk_idx is None:
            if self.router is None:
                raise ProblemError("topk_idx", None, "given, or the layer made with a router")
            topk_idx, topk_weights = self.router(x, self.problem.topk, token_ids, self.rank)
        assert topk_weights is not None
        return cast(torch.Tensor, self.experts(x, topk_idx, topk_weights.float(), **options))


__all__ = ["MoE", "Router"]
