"""The layer over several NVLink domains: torch.distributed moves rows between nodes, the layer of a domain computes on each.

A token's row goes once to every node that has one of its experts, and one row of results comes back.  A rail is the ranks with the same
number on all nodes; rows travel between the ranks of a rail.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from ..problem import Problem, ProblemError
from ..quant import ExpertWeights, blocks_of, dequantize_e4m3, quantize, quantize_e4m3
from ..recipe import BF16
from .buffers import check_layout
from .call_plan import Tensors
from .custom_op import asks_for_gradients, check_no_gradient, is_plain_call, register
from .custom_op import mega_moe as mega_moe_op
from .watchdog import GRACE_S, WatchdogError, name_silent, silent_ranks

NETWORK_SMS = 16  # Of a GPU, left to NCCL where a call has several chunks.
CHUNKED_BYTES = 50e6
"""A 400 Gb/s card sends these in 1 ms; a second chunk hides a part of that, and costs the host 0.63 ms (docs/lab/nodes.md)."""
Exchange = Callable[[], torch.Tensor]
"""Waits for rows that travel between the ranks of a rail, and returns them."""


@dataclass
class Traffic:
    """What a rank has sent to other nodes: token rows, and bytes of tokens, results, gradients of both, and counts."""

    rows: int = 0
    dispatched: int = 0
    returned: int = 0
    gradients: int = 0
    counts: int = 0


@dataclass
class Rails:
    """The groups of one rank.

    group         all ranks, node after node
    node, number  of this rank, and its number in the node
    nodes, ranks  how many nodes there are, of how many ranks
    rail, within  groups of the ranks with this number, and of this node's ranks
    """

    group: Any
    node: int
    number: int
    nodes: int
    ranks: int
    rail: Any
    within: Any
    device: torch.device
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def rank(self) -> int:
        return self.node * self.ranks + self.number

    def gather_counts(self, counts: torch.Tensor) -> torch.Tensor:
        """int64 [nodes, ranks, chunks, nodes] on the CPU: rows that every rank sends to every node, from each rank's [chunks, nodes]."""
        every = counts.new_empty(self.nodes * self.ranks, *counts.shape)
        self.traffic.counts += counts.numel() * counts.element_size() * (self.nodes - 1) * self.ranks
        with self.naming_lost_ranks("counts of rows"):
            dist.all_gather(list(every.unbind()), counts, group=self.group)
            found = torch.empty(every.shape, dtype=every.dtype, device="cpu", pin_memory=every.is_cuda).copy_(every, non_blocking=True)
            self.wait()
        return found.view(self.nodes, self.ranks, *counts.shape)

    def wait(self) -> None:
        """The host waits for the device.  Raises RuntimeError after the timeout of the group's collectives, because an NCCL collective that
        lacks a rank never ends."""
        if self.device.type == "cpu":
            return
        limit_s, done = timeout_of(self.group, self.device).total_seconds(), torch.cuda.Event()
        done.record()
        end = time.monotonic() + limit_s
        while not done.query():
            if time.monotonic() > end:
                raise RuntimeError(f"not done in {limit_s:g} s")

    def exchange(self, kind: str, rows: torch.Tensor, send: Sequence[int], receive: Sequence[int]) -> Exchange:
        """Starts to send bytes [rows, row bytes], `send[n]` rows to node n, and to receive `receive[n]` rows from it.  `kind` is the field
        of `Traffic` that counts the bytes.  Calling the result makes the GPU's current stream wait, not the host."""
        found = rows.new_empty(sum(receive), rows.shape[1])
        setattr(self.traffic, kind, getattr(self.traffic, kind) + self.away(send) * rows.shape[1])
        with self.naming_lost_ranks("rows"):
            work = dist.all_to_all_single(found, rows, list(receive), list(send), group=self.rail, async_op=True)

        def wait() -> torch.Tensor:
            with self.naming_lost_ranks("rows"):
                work.wait()
            return found

        return wait

    def away(self, counts: Sequence[int]) -> int:
        """Rows for other nodes, of counts by node."""
        return sum(counts) - counts[self.node]

    def abort(self) -> None:
        """Ends NCCL's kernels, which wait for a lost rank: until then `destroy_process_group` waits for them."""
        backends = [group._get_backend(self.device) for group in (self.group, self.rail, self.within)]
        if is_nccl(backends[0]):
            backends[0]._group_start()  # the order of communicators must not matter
            for one in backends:
                one.abort()
            backends[0]._group_end()

    @contextmanager
    def naming_lost_ranks(self, what: str) -> Iterator[None]:
        """Turns the error of a collective into `WatchdogError` and aborts the groups.  The message names the ranks that report no such
        error within the group's timeout and `GRACE_S`."""
        try:
            yield
        except RuntimeError as error:
            store, wait = dist.distributed_c10d._get_default_store(), timeout_of(self.group, self.device).total_seconds() + GRACE_S
            lost = silent_ranks(store, f"megamoe_dsl nodes {self.group.group_name}", self.rank, self.nodes * self.ranks, wait)
            self.abort()
            raise WatchdogError(f"rank {self.rank}, {what}: {str(error).partition(chr(10))[0]}{name_silent(lost, wait)}") from error


@lru_cache
def rails_of(group: Any, ranks: int, device: torch.device, sms: int = 0) -> Rails:
    """The rails of a group, shared by its layers; all ranks call this together.  `sms` bounds the SMs that NCCL uses, 0: no bound."""
    world, (node, number), timeout = dist.get_world_size(group), divmod(dist.get_rank(group), ranks), timeout_of(group, device)
    every, own = dist.get_process_group_ranks(group), {"timeout": timeout, "use_local_synchronization": True}
    options = None
    if sms and is_nccl(group._get_backend(device)):
        options = dist.ProcessGroupNCCL.Options()
        options._timeout, options.config.max_ctas = timeout, sms
    within = dist.new_group(every[node * ranks :][:ranks], **own)
    rail = dist.new_group(every[number::ranks], pg_options=options, **own)
    return Rails(group, node, number, world // ranks, ranks, rail, within, device)


def ranks_of_a_domain(group: Any) -> int:
    """Ranks of a host, the default NVLink domain.  Raises `ProblemError` where hosts differ in ranks, or ranks are not consecutive."""
    hosts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(hosts, socket.gethostname(), group=group)
    ranks = hosts.count(hosts[0])
    blocks = [set(hosts[first : first + ranks]) for first in range(0, len(hosts), ranks)]
    if len(hosts) % ranks or any(len(one) > 1 for one in blocks) or len(set.union(*blocks)) != len(blocks):
        raise ProblemError("domain", hosts, "given where hosts have different numbers of ranks, or their ranks are not consecutive")
    return ranks


def is_nccl(backend: Any) -> bool:
    return dist.is_nccl_available() and isinstance(backend, dist.ProcessGroupNCCL)


def timeout_of(group: Any, device: torch.device) -> Any:
    """How long a group's collectives wait."""
    return group._get_backend(device).options._timeout


def row_bytes(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rows of tensors [tokens, any], concatenated as bytes."""
    return torch.cat([one.contiguous().view(torch.uint8) for one in parts], dim=1)


def split_rows(rows: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Inverse of `row_bytes`, with the dtypes and widths of `like`."""
    widths = [one.shape[1] * one.element_size() for one in like]
    size = math.gcd(8, *widths)  # bytes of a copy, the most that divide all widths
    words = rows.view((torch.uint8, torch.int16, torch.int32, torch.int64)[size.bit_length() - 1])
    return [part.contiguous().view(one.dtype) for part, one in zip(words.split([n // size for n in widths], dim=1), like, strict=True)]


def node_problem(problem: Problem, ranks: int, chunks: int = 1) -> Problem:
    """The layer of a node of `ranks` ranks, with capacity for a chunk from every node.  Raises `ProblemError`."""
    if ranks < 1 or problem.num_ranks % ranks:
        raise ProblemError("domain", ranks, f"a divisor of the group's {problem.num_ranks} ranks")
    if chunks < 1:
        raise ProblemError("chunks", chunks, "1 or more")
    nodes = problem.num_ranks // ranks
    experts, most = problem.num_experts // nodes, -(-problem.max_tokens_per_rank // chunks) * nodes
    if problem.topk > experts:
        raise ProblemError("topk", problem.topk, f"at most the {experts} experts of a node")
    return replace(problem, num_experts=experts, num_ranks=ranks, max_tokens_per_rank=most)


def default_chunks(problem: Problem, ranks: int, tokens: int, groups: int) -> int:
    """2 if a rank with so many tokens sends more than `CHUNKED_BYTES` to other nodes, else 1.  Assumes uniform routing, in which a token's
    experts belong to at most `groups` groups."""
    formats, nodes = problem.formats, problem.num_ranks // ranks
    rows = tokens * (nodes - 1) * (1 - (1 - 1 / nodes) ** min(problem.topk, groups))
    row_bytes = problem.hidden * (formats.activations.bytes_per_value + formats.combine.bytes_per_value)
    return 2 if rows * row_bytes > CHUNKED_BYTES else 1


@dataclass(frozen=True)
class Plan:
    """Rows of a call; each field has an entry per chunk.

    tokens         indices of this rank's tokens to send, sorted by node
    send, receive  number of rows to and from each node
    bounds         the most rows that a rank of this node receives
    """

    tokens: list[torch.Tensor]
    send: list[list[int]]
    receive: list[list[int]]
    bounds: list[int]


class Travel(torch.autograd.Function):
    """Rows to other nodes; their gradients travel back, in the dtypes of the rows."""

    @staticmethod
    def forward(ctx: Any, kind: str, rails: Rails, send: list[int], receive: list[int], *parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`parts` [rows, any], side by side."""
        ctx.rails, ctx.send, ctx.receive = rails, send, receive
        found = split_rows(rails.exchange(kind, row_bytes(parts), send, receive)(), parts)
        ctx.mark_non_differentiable(*(one for one in found if not one.is_floating_point()))
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Gradients of the floating-point parts."""
        sent = [one for one in gradients if one.is_floating_point()]
        came = iter(split_rows(ctx.rails.exchange("gradients", row_bytes(sent), ctx.receive, ctx.send)(), sent))
        return (None, None, None, None, *(next(came) if one.is_floating_point() else None for one in gradients))


travel: Any = Travel.apply


class NodeLayer(torch.nn.Module):
    """As `MegaMoE`, over the nodes of `rails`.  y is the FP32 sum of the nodes' results in the order of nodes, then of the shared experts';
    each result is rounded as the layer of a domain rounds y.

    domain  the layer of this node's `node_problem`.  Its `takes_scales` and `takes_bound` say whether calls take `x_sf` and
            `num_tokens_bound`, its `trained` lists the weights with gradients (empty: no backward pass)
    shared  the layer of this rank's shared experts
    """

    def __init__(self, problem: Problem, domain: Any, rails: Rails, chunks: int, shared: Any = None) -> None:
        super().__init__()
        self.problem, self.rails, self.chunks, self.traffic = problem, rails, chunks, rails.traffic
        self.experts, self.shared = domain, shared
        self.node_experts = problem.num_experts // rails.nodes
        tokens = problem.formats.activations  # NVFP4 tokens travel in BF16: only the domain's layer has their factor
        self.takes_scales = domain.takes_scales and tokens.scale is not None and not tokens.factor
        self.takes_bound = domain.takes_bound
        self.trained = domain.trained if shared is None and problem.combine == BF16 else ()
        self.untraced_call = torch.compiler.disable(self.train_call) if self.trained else self.train_call
        self.order = torch.zeros(1, dtype=torch.int32, device=rails.device)
        self.number = register(self)

    def forward(
        self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, *, num_tokens_bound: int | None = None
    ) -> torch.Tensor:
        """y of this rank's tokens.  Every rank makes the same sequence of calls.  The host waits once a call, for counts of rows; with
        `num_tokens_bound`, at least the tokens of every rank and the same on each, it does not wait and a CUDA graph can capture the call,
        because every node gets that many rows.

        Raises `ProblemError` before anything is sent, and `WatchdogError`, which names the lost ranks, when a collective fails."""
        bound = -1 if num_tokens_bound is None else self.problem.check_num_tokens(num_tokens_bound, "num_tokens_bound")
        if 0 <= bound < len(x):
            raise ProblemError("num_tokens_bound", bound, f"None, or at least this rank's {len(x)} tokens")
        if asks_for_gradients((x, topk_weights, *self.trained)):
            if not self.trained:
                check_no_gradient(("x", "topk_weights"), (x, topk_weights))
            return self.untraced_call(x, topk_idx, topk_weights, bound)
        if is_plain_call(x):
            return self.launch((x, None, topk_idx, topk_weights), bound)
        return mega_moe_op(x, None, topk_idx, topk_weights, self.order, self.number, bound)

    def launch(self, tensors: Tensors, bound: int, out: torch.Tensor | None = None) -> torch.Tensor:
        """The call itself, inside an operator or without one."""
        x, _, topk_idx, topk_weights = tensors
        check_layout(self.problem, "", x, None, topk_idx, topk_weights)
        rows = quantize(x, self.problem.formats.activations, check=False) if self.takes_scales else (x,)
        parts = (*rows, topk_idx.int() + 1, topk_weights)  # a row of zeros, which stands for no token, has masked slots
        plan, sent = self.plan(topk_idx, bound), torch.nn.functional.pad(row_bytes(parts), (0, 0, 0, 1))
        there, back = [self.dispatch(plan, sent, 0)], []
        own = self.of_shared(rows)  # while the first rows are on their way
        for chunk in range(self.chunks):
            if chunk + 1 < self.chunks:
                there.append(self.dispatch(plan, sent, chunk + 1))
            back.append(self.compute(plan, parts, there[chunk](), chunk))
        return self.total(plan, (self.as_received(one()) for one in back), x, own)

    def train_call(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, bound: int) -> torch.Tensor:
        """y with a backward pass, in which every rank takes part.  Communication and computation of chunks do not overlap."""
        check_layout(self.problem, "", x, None, topk_idx, topk_weights)
        plan, wide = self.plan(topk_idx, bound), x.float()  # gradients from several nodes are added in FP32
        if not wide.requires_grad:
            wide.requires_grad_()  # other ranks wait for this rank's backward pass
        sent = [torch.nn.functional.pad(one, (0, 0, 0, 1)) for one in (wide, topk_idx.int() + 1, topk_weights)]
        back = []
        for tokens, send, receive in zip(plan.tokens, plan.send, plan.receive, strict=True):
            self.rails.traffic.rows += self.rails.away(send)
            rows, idx, weights = (one[tokens] for one in sent)
            rows, idx, weights = travel("dispatched", self.rails, send, receive, rows.bfloat16(), idx, weights)
            (found,) = travel("returned", self.rails, receive, send, self.experts(rows, self.local(idx), weights))
            back.append(found.float())
        return self.total(plan, back, x)

    def synchronize(self) -> None:
        """The host waits for the device.  Raises `WatchdogError`, which names lost ranks, after the timeout of a collective."""
        with self.rails.naming_lost_ranks("synchronize"):
            self.rails.wait()

    def load_expert(self, index: int, weights: ExpertWeights) -> None:
        """Replaces one of the rank's experts in place; shared experts have the last indices."""
        routed = self.node_experts // self.rails.ranks
        if self.shared is not None and index >= routed:
            self.shared.load_expert(index - routed, weights)
        else:
            self.experts.load_expert(index, weights)

    def of_shared(self, rows: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """The shared experts' results for the rank's own tokens, with weight 1 each."""
        if self.shared is None:
            return None
        idx = torch.arange(self.shared.problem.topk, device=rows[0].device).expand(len(rows[0]), -1).contiguous()
        y: torch.Tensor = self.shared(rows[0], idx, torch.ones(idx.shape, device=idx.device), **self.scales_of(rows))
        return y

    def scales_of(self, tokens: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"x_sf": tokens[1]} if self.takes_scales else {}

    def plan(self, topk_idx: torch.Tensor, bound: int) -> Plan:
        """Which tokens go to which node in which chunk, and how many rows come; with a bound every node gets the most rows possible."""
        nodes, tokens, chunks = self.rails.nodes, len(topk_idx), self.chunks
        size = max(1, -(-(tokens if bound < 0 else bound) // chunks))
        node_of = torch.where(topk_idx >= 0, topk_idx // self.node_experts, -1)
        wanted = torch.stack([(node_of == node).any(dim=1) for node in range(nodes)])
        wanted = torch.nn.functional.pad(wanted, (0, chunks * size - tokens)).view(nodes, chunks, size)
        # A stable sort moves the tokens that a node needs to the front, without asking the device for their number.
        first = torch.arange(0, chunks * size, size, device=topk_idx.device)[:, None]
        order, counts = wanted.logical_not().byte().argsort(dim=2, stable=True) + first, wanted.sum(dim=2)
        if bound >= 0:
            filled = torch.arange(size, device=topk_idx.device) < counts[:, :, None]
            every = [[size] * nodes] * chunks
            return Plan(list(order.where(filled, tokens).transpose(0, 1).flatten(1)), every, every, [size * nodes] * chunks)
        gathered = self.rails.gather_counts(counts.T.contiguous())
        send = gathered[self.rails.node, self.rails.number].tolist()
        chosen = [torch.cat([order[node, chunk, :rows] for node, rows in enumerate(of_node)]) for chunk, of_node in enumerate(send)]
        here = gathered[:, :, :, self.rails.node]  # rows that come to each rank of this node, from each node
        return Plan(chosen, send, here[:, self.rails.number].T.tolist(), here.sum(dim=0).amax(dim=0).tolist())

    def dispatch(self, plan: Plan, sent: torch.Tensor, chunk: int) -> Exchange:
        rows, send = sent[plan.tokens[chunk]], plan.send[chunk]
        self.rails.traffic.rows += self.rails.away(send)
        return self.rails.exchange("dispatched", rows, send, plan.receive[chunk])

    def compute(self, plan: Plan, parts: tuple[torch.Tensor, ...], rows: torch.Tensor, chunk: int) -> Exchange:
        """Runs the domain's layer on the rows that came, and starts to send the results back."""
        *tokens, idx, weights = split_rows(rows, parts)
        bound: dict[str, Any] = {"num_tokens_bound": plan.bounds[chunk]} if self.takes_bound else {}
        found = self.as_sent(self.experts(tokens[0], self.local(idx), weights, **bound, **self.scales_of(tokens)))
        return self.rails.exchange("returned", found, plan.receive[chunk], plan.send[chunk])

    def local(self, idx: torch.Tensor) -> torch.Tensor:
        """Indices of experts within this node, -1 for others, from the indices plus 1 that were sent."""
        local = idx - 1 - self.rails.node * self.node_experts
        return local.where((local >= 0) & (local < self.node_experts), -1)

    def as_sent(self, y: torch.Tensor) -> torch.Tensor:
        """Rows of results as bytes: BF16, or E4M3 with a UE8M0 scale per 128 channels, as the problem's `combine` says."""
        form = self.problem.formats.combine
        return row_bytes((y,) if form.scale is None else quantize_e4m3(blocks_of(y, form.channels).flatten(1), form.channels, check=False))

    def as_received(self, rows: torch.Tensor) -> torch.Tensor:
        form, hidden = self.problem.formats.combine, self.problem.hidden
        if form.scale is None:
            return rows.view(torch.bfloat16).float()
        codes, scales = rows.split([-(-hidden // form.channels) * form.channels, form.scales_of(hidden)], dim=1)
        return dequantize_e4m3(codes.contiguous(), scales.contiguous(), form.channels).float()[:, :hidden]

    def total(self, plan: Plan, back: Iterable[torch.Tensor], x: torch.Tensor, own: torch.Tensor | None = None) -> torch.Tensor:
        """y, from FP32 rows of results of each chunk in the order of nodes, and the results of the shared experts (`own`)."""
        total = torch.zeros(len(x) + 1, x.shape[1], dtype=torch.float32, device=x.device)
        for chunk, found in enumerate(back):
            send = plan.send[chunk]
            for tokens, rows in zip(plan.tokens[chunk].split(send), found.split(send), strict=True):
                total.index_add_(0, tokens, rows)
        if own is not None:
            total[:-1] += own.float()
        return total[:-1].bfloat16()
