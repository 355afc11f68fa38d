"""A MoE layer for one GPU, the GPUs of an NVLink domain, or several nodes of them; with CPU tensors too.

    layer = MoE(problem, weights)                                  one device
    layer = MoE(problem, weights, group=group)                     every rank of a process group, on one node or several
    y = layer(x, topk_idx, topk_weights)

`MoE` chooses the launches: `moe`, `MegaMoE` or `EpMoE` within a domain, and between domains torch.distributed (nodes/).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from ..arch import SM90
from ..problem import Problem, ProblemError
from ..quant import ExpertWeights
from .domain import domain_layer
from .nodes.layer import NodeLayer
from .nodes.rails import Traffic, rails_of
from .symmetric_memory import device_arch
from .top_experts import router_logits_of, top_experts


@dataclass(frozen=True)
class Router:
    """How a layer chooses experts from tokens themselves.

    weight   bfloat16 or float32 [experts, H], which makes logits of tokens in FP32
    others   as arguments of `top_experts`
    """

    weight: torch.Tensor
    scores: str = "softmax"
    bias: torch.Tensor | None = None
    groups: int = 1
    topk_groups: int = 1
    scale: float = 1.0
    hash_table: torch.Tensor | None = None
    replicas: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, topk: int, token_ids: torch.Tensor | None, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """topk_idx and topk_weights of x, bfloat16 [T, H]."""
        choice = {name: getattr(self, name) for name in ("scores", "bias", "groups", "topk_groups", "scale", "hash_table", "replicas")}
        return top_experts(router_logits_of(x, self.weight), topk, token_ids=token_ids, replica_shift=rank, **choice)


class MoE(torch.nn.Module):
    """A layer of experts, the same on every rank but for its tokens.

    problem      the layer over all ranks of the group
    weights      the rank's experts, in checkpoint order on its device; None for a `MegaMoE` whose experts are loaded (`load_experts`)
    group        a torch.distributed group of `problem.num_ranks` ranks, the default one if there are several
    domain       ranks that share an NVLink domain, `domain` after one another; by default those of one host
    router       chooses experts, where a call has none
    activation   the caller's own, of rows [gate | up], bf16 [rows, 2I] to [rows, I]: the launches are `EpMoE`'s
    launch       one of moe, mega_moe, ep_moe; by default the one that was measured to be faster for so many `tokens` of a rank
    chunks       parts of a call's tokens on several nodes: the network moves one while another is computed
    options      of the class that computes the layer within a domain, such as `bounds`, `reserved_sms` or `watchdog_ns` of `MegaMoE`

    `traffic` counts what this rank sent to other nodes; None within one domain.

    Raises `ProblemError`, which names the argument.
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
        chunks: int = 2,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.problem, self.router, self.rank = problem, router, 0
        self.traffic: Traffic | None = None
        fallback = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        place = torch.device(device) if device is not None else fallback if weights is None else weights.fc1.device
        ranks = 1
        if problem.num_ranks > 1:
            import torch.distributed as dist

            if group is None and not (dist.is_available() and dist.is_initialized()):
                raise ProblemError("group", None, f"a process group of num_ranks = {problem.num_ranks} ranks")
            group = dist.group.WORLD if group is None else group
            if dist.get_world_size(group) != problem.num_ranks:
                raise ProblemError("num_ranks", problem.num_ranks, f"the size of the process group, {dist.get_world_size(group)}")
            self.rank = dist.get_rank(group)
            ranks = ranks_of_a_domain(group) if domain is None else domain
        others: dict[str, Any] = {"launch": launch, "activation": activation, "tokens": tokens, **options}
        if ranks == problem.num_ranks:
            self.experts = domain_layer(problem, weights, group, place, **others).experts
        else:
            rails = rails_of(group, ranks, place)
            self.experts, self.traffic = NodeLayer(problem, weights, rails, chunks, place, **others), rails.traffic

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
        """The layer that a rank's weights say, for up to `max_tokens` of each rank; `fields` are others of its `Problem`."""
        ranks = 1 if group is None else group.size()
        shape = {**shape_of(weights), "num_experts": len(weights.fc1) * ranks, "num_ranks": ranks}
        problem = Problem(**{**shape, "topk": topk, "max_tokens_per_rank": max_tokens, **(fields or {})})
        return cls(problem, weights, group=group, **others)

    @property
    def device(self) -> torch.device:
        """Where the layer's weights are."""
        return self.experts.device

    def load_expert(self, index: int, weights: ExpertWeights) -> None:
        """Replaces one of the rank's experts, in place, where the layer keeps its own weights (`MegaMoE`)."""
        self.experts.load_expert(index, weights)

    def forward(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        *,
        token_ids: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """y, bfloat16 [T, H], of bfloat16 tokens; without topk_idx the router chooses, by `token_ids` where it has a table of them.

        topk_idx, topk_weights  int64 or int32, and float32 [T, topk]; -1 masks a slot
        options                 of the class within a domain, such as `num_tokens_bound`

        Raises `ProblemError`.
        """
        if (topk_idx is None) != (topk_weights is None):
            raise ProblemError("topk_idx, topk_weights", None, "both given, or neither")
        if topk_idx is None:
            if self.router is None:
                raise ProblemError("topk_idx", None, "given, or the layer made with a router")
            topk_idx, topk_weights = self.router(x, self.problem.topk, token_ids, self.rank)
        y: torch.Tensor = self.experts(x, topk_idx, topk_weights, **options)
        return y


def ranks_of_a_domain(group: Any) -> int:
    """Ranks of a host, which are taken for those of an NVLink domain.  Raises `ProblemError` where hosts have different numbers, or their
    ranks do not follow one another."""
    import torch.distributed as dist

    hosts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(hosts, socket.gethostname(), group=group)
    ranks = hosts.count(hosts[0])
    blocks = [set(hosts[first : first + ranks]) for first in range(0, len(hosts), ranks)]
    if len(hosts) % ranks or any(len(one) > 1 for one in blocks) or len(set.union(*blocks)) != len(blocks):
        raise ProblemError("domain", hosts, "given where hosts have different numbers of ranks, or their ranks are not consecutive")
    return ranks


def shape_of(weights: ExpertWeights) -> dict[str, Any]:
    """Fields of a `Problem` that a rank's weights say: sizes, biases, and by their dtypes a recipe; of E2M1 that of the GPU, fp8xmxfp4 on
    SM90."""
    packed = weights.fc1.dtype == torch.uint8
    hopper = weights.fc1.is_cuda and device_arch(weights.fc1.device) == SM90
    by_dtype = {torch.bfloat16: "bf16xbf16", torch.uint8: "fp8xmxfp4" if hopper else "fp8xfp4"}
    return {
        "hidden": weights.fc1.shape[2] * (2 if packed else 1),
        "intermediate": weights.fc1.shape[1] // 2,
        "recipe": by_dtype.get(weights.fc1.dtype, "fp8xfp8"),
        "biases": weights.fc1_bias is not None,
    }


__all__ = ["MoE", "Router"]
