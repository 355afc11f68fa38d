"""The layer over nodes on GPUs, beside a layer of all experts on each rank.

python tests/gpu/over_nodes.py prepare --ranks 4 --domain 2                                where the DSL is: compiles what the others take
torchrun --nproc-per-node 4 tests/gpu/over_nodes.py run --domain 2                         two nodes that are parts of one host, NCCL
torchrun --nnodes 2 --node-rank N --nproc-per-node 8 --master-addr HOST --master-port 29500 tests/gpu/over_nodes.py run --domain 8
torchrun --nproc-per-node 2 tests/gpu/over_nodes.py run --domain 1 --one-gpu               nodes that share a GPU, gloo
torchrun --nproc-per-node 1 tests/gpu/over_nodes.py run --domain 1 --checks graph,time     a node that sends all rows to itself, NCCL

`--chunks` is the layer's, which chooses by default.

calls    y of `--calls` calls to the bit, of changing numbers of tokens, with masked slots
graph    a captured call, replayed with other tokens, to the bit; NCCL alone
overlap  launches that wait for all ranks, beside exchanges of all ranks: every rank is a node, too, with the same experts.  Without SMs for
         NCCL (`--sms 0`) they wait for one another and never end
compile  a call under torch.compile, to the bit
shared   with a shared expert on every rank, to the bit
train    gradients in BF16 beside those of one GPU with all experts; a single node of all ranks, too
time     microseconds of a call for each number of chunks, of its host's part, and in a graph; bytes that a rank sends in a call
trace    when NCCL's kernels and launches ran in a call, by torch.profiler
lose     the last rank ends; the others name it and go on as nodes of one rank with the same weights.  The last check
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from megamoe_dsl import ExpertWeights, MoE, Problem, WatchdogError, disable_multicast, moe, random_weights
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.moe.halves.gemm_part import ACTIVATED
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.moe_layer import node_layer
from megamoe_dsl.runtime.nodes import NETWORK_SMS, NodeLayer, Rails, default_chunks, node_problem, rails_of
from megamoe_dsl.runtime.preparation import compile_ahead, expert_kernels, grid_target, halves_kernels, layer_kernels
from megamoe_dsl.shared_experts import SharedExperts
from megamoe_dsl.target import Target, local_target
from script_options import at_least

Call = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
CHUNKS = (1, 2, 4, 8)
CHECKS = ("calls", "graph", "compile", "shared", "train", "overlap", "time", "trace", "lose")
TURNS, GRAPH_TOKENS = 50, 32
REPLAYS, SHARED_CALLS, OVERLAP_CALLS = 50, 20, 300
BF16 = "bf16xbf16"
GROUP_S = 10
"""Of collectives where a rank is lost."""
SURVIVING = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500"}
"""So that a lost rank becomes an error, and not the end of the process, whose groups end in seconds."""


def problem_of(ranks: int, tokens: int, recipe: str = "fp8xfp8") -> Problem:
    return Problem(2048, 1024, 8 * ranks, 4, ranks, tokens, recipe)


def crossed(problem: Problem) -> Problem:
    """The layer of as many nodes as a domain has ranks."""
    return replace(problem, num_experts=problem.num_experts * problem.num_ranks, num_ranks=problem.num_ranks**2)


def prepare(given: argparse.Namespace) -> int:
    """Compiles the kernels of these checks in parallel, into the cache; how many were missing."""
    checks, ranks, domain, tokens = given.checks, given.ranks, given.domain, given.tokens
    gpu = local_target() or Target.typical("sm_90a")
    problem, left, target = problem_of(ranks, tokens), problem_of(max(ranks - 1, 1), tokens), grid_target(gpu)
    layers = [replace(problem, num_ranks=1)]
    layers += [replace(problem, num_experts=1, topk=1, num_ranks=1)] if "shared" in checks else []
    layers += [replace(left, num_ranks=1), node_problem(left, 1)] if "lose" in checks else []
    kernels = [one for layer in layers for one in layer_kernels(layer, target, ())]
    chunks = {given.chunks or default_chunks(problem, domain, tokens, problem.topk)}
    cut = [node_problem(problem, domain, count) for count in {*chunks, *(CHUNKS if "time" in checks else ())}]
    cut += [node_problem(crossed(problem), ranks, 2)] if "overlap" in checks else []
    for layer in cut:
        sms = 0 if layer.max_tokens_per_rank == tokens * ranks // domain else given.sms
        kernels += layer_kernels(layer, grid_target(gpu, sms), ())
    if "train" in checks:
        halves = halves_kernels(node_problem(problem_of(ranks, tokens, BF16), domain), target, {"gate_up": ACTIVATED}, train=True)
        own = [] if domain > 1 else [(problem.experts_per_rank, range(1, ranks * tokens // 2 + 1))]
        for experts, rows in ((problem.num_experts, [tokens // 2]), *own):
            layer = ExpertLayer(problem.hidden, problem.intermediate, experts, problem.topk, recipe=BF16, preactivations=True)
            kernels += expert_kernels(layer, target, rows)
        kernels += halves if domain > 1 else []
    return compile_ahead(kernels)


def joined(every: Sequence[ExpertWeights]) -> ExpertWeights:
    """The experts of all ranks."""
    names = [name for name, tensor in vars(every[0]).items() if tensor is not None]
    return ExpertWeights(**{name: torch.cat([getattr(one, name) for one in every]) for name in names})


def sum_of_nodes(layer: MoE, call: Call, nodes: int) -> torch.Tensor:
    """What each node's experts give, rounded, added in FP32 in the order of nodes."""
    x, idx, weights = call
    experts, total = layer.problem.num_experts // nodes, torch.zeros(x.shape, device=x.device)
    for node in range(nodes):
        total += layer(x, idx.where(idx // experts == node, -1), weights).float()
    return total


@dataclass
class Rank:
    """One process of the run."""

    rank: int
    ranks: int
    domain: int
    tokens: int
    graphs: bool
    chunks: int | None
    sms: int

    def __post_init__(self) -> None:
        self.problem, self.nodes = problem_of(self.ranks, self.tokens), self.ranks // self.domain
        self.every = [random_weights(self.problem, one, seed=0, device="cuda") for one in range(self.ranks)]
        self.whole = MoE(replace(self.problem, num_ranks=1), joined(self.every), launch="mega_moe")
        self.layer = self.made(self.chunks)
        self.generator = torch.Generator("cuda").manual_seed(self.rank)

    def made(self, chunks: int | None) -> Any:
        """A layer over the nodes.  One rank is a node alone, which sends rows to itself."""
        own = self.every[self.rank]
        if self.ranks > 1:
            return MoE(self.problem, own, domain=self.domain, chunks=chunks)
        others: dict[str, Any] = {"launch": None, "activation": None, "tokens": 0}
        return node_layer(self.problem, own, dist.group.WORLD, own.fc1.device, 1, chunks, None, **others)

    def call(self, tokens: int | None = None, problem: Problem | None = None) -> Call:
        """Random tokens, a few slots masked."""
        layer, draw = problem or self.problem, {"generator": self.generator, "device": "cuda"}
        if tokens is None:
            tokens = int(torch.randint(0, self.tokens + 1, (1,), **draw))
        x = torch.randn(tokens, layer.hidden, **draw).bfloat16()
        weights, idx = torch.rand(tokens, layer.num_experts, **draw).topk(layer.topk)
        return x, idx.where(torch.rand(idx.shape, **draw) > 0.05, -1), weights

    def expected(self, call: Call) -> torch.Tensor:
        return sum_of_nodes(self.whole, call, self.nodes).bfloat16()

    def calls(self, count: int) -> str:
        for number in range(count):
            call = self.call()
            assert torch.equal(self.layer(*call), self.expected(call)), f"rank {self.rank}, call {number}, {len(call[0])} tokens"
        return f"{count} calls without a mismatch; {self.layer.traffic}"

    def graph(self) -> str:
        if not self.graphs:
            return "left out: gloo in no graph"
        call = self.call(GRAPH_TOKENS - self.rank % 2)
        graph, y = self.captured(self.layer, call, GRAPH_TOKENS)
        for number in range(REPLAYS):
            for old, new in zip(call, self.call(len(call[0])), strict=True):
                old.copy_(new)
            graph.replay()
            assert torch.equal(y, self.expected(call)), f"rank {self.rank}, replay {number}"
        return f"{REPLAYS} replays without a mismatch, {self.us(graph.replay):.0f} us each"

    def captured(self, layer: Any, call: Call, bound: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        """A graph of a call, and the y of its replays."""
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            layer(*call, num_tokens_bound=bound)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            y = layer(*call, num_tokens_bound=bound)
        return graph, y

    def us(self, turn: Callable[[], object]) -> float:
        """Of a turn of many, all ranks at once."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(3):
            turn()
        torch.cuda.synchronize()
        dist.barrier()
        start.record()
        for _ in range(TURNS):
            turn()
        end.record()
        torch.cuda.synchronize()
        return 1e3 * start.elapsed_time(end) / TURNS

    def compile(self) -> str:
        call = self.call()
        assert torch.equal(torch.compile(self.layer, fullgraph=True, backend="aot_eager")(*call), self.expected(call))
        return "equal"

    def shared(self) -> str:
        whole = SharedExperts(self.problem, 1).whole
        weights = random_weights(whole, self.rank, seed=1, device="cuda")
        ours = weights.map(lambda tensor: torch.cat([tensor[:0], tensor[-1:]]))
        routed = self.every[self.rank]
        mixed = ExpertWeights(*(torch.cat([getattr(routed, name), getattr(ours, name)]) for name in ("fc1", "fc1_sf", "fc2", "fc2_sf")))
        layer = MoE(self.problem, mixed, domain=self.domain, shared_experts=1)
        own = MoE(replace(self.problem, num_experts=1, topk=1, num_ranks=1), ours, launch="mega_moe")
        for number in range(SHARED_CALLS):
            call = self.call()
            slots = torch.zeros(len(call[0]), 1, dtype=torch.int64, device="cuda")
            total = sum_of_nodes(self.whole, call, self.nodes) + own(call[0], slots, torch.ones(slots.shape, device="cuda")).float()
            assert torch.equal(layer(*call), total.bfloat16()), f"rank {self.rank}, call {number}"
        return f"{SHARED_CALLS} calls without a mismatch"

    def train(self) -> str:
        problem = problem_of(self.ranks, self.tokens, BF16)
        every = [random_weights(problem, one, seed=0, device="cuda") for one in range(self.ranks)]
        all_weights, own = joined(every), every[self.rank]
        call = self.call(self.tokens // 2, problem)
        wanted = [one.clone().requires_grad_() for one in (call[0], call[2], all_weights.fc1, all_weights.fc2)]
        moe(wanted[0], wanted[2], None, wanted[3], None, call[1], wanted[1]).float().sum().backward()
        given = [one.clone().requires_grad_() for one in (call[0], call[2])]
        for one in (own.fc1, own.fc2):
            one.requires_grad_()
        MoE(problem, own, domain=self.domain)(given[0], call[1], given[1]).float().sum().backward()
        for one in wanted[2:]:
            dist.all_reduce(one.grad)
        mine = slice(8 * self.rank, 8 * self.rank + 8)
        pairs = [*zip(given, wanted, strict=False), *((w, a) for w, a in zip((own.fc1, own.fc2), wanted[2:], strict=True))]
        errors = []
        for one, other in pairs:
            expected = (other.grad if other.grad.shape == one.grad.shape else other.grad[mine]).float()
            errors.append(float((one.grad.float() - expected).norm() / expected.norm()))
        assert all(one < 0.01 for one in errors), errors
        return "relative errors of x, top-k weights, fc1, fc2: " + ", ".join(f"{one:.4f}" for one in errors)

    def overlap(self) -> str:
        if not self.graphs:
            return "left out: gloo's exchanges are the host's"
        problem, one = crossed(self.problem), rails_of(dist.group.WORLD, 1, torch.device("cuda", torch.cuda.current_device()), self.sms)
        rails = Rails(one.group, self.rank, self.rank, self.ranks, self.ranks, one.rail, one.group, one.device)
        inner = MegaMoE(node_problem(problem, self.ranks, 2), self.every[self.rank], group=one.group, reserved_sms=self.sms)
        layer, calls, found, experts = NodeLayer(problem, inner, rails, 2), [], [], self.problem.num_experts
        for _ in range(OVERLAP_CALLS):
            calls.append(self.call(problem=problem))
            time.sleep(random.random() * 2e-3)  # ranks are not in step
            found.append(layer(*calls[-1], num_tokens_bound=self.tokens))
        layer.synchronize()
        for number, ((x, idx, weights), y) in enumerate(zip(calls, found, strict=True)):
            total = torch.zeros(x.shape, device="cuda")
            for node in range(self.ranks):
                total += self.whole(x, (idx - node * experts).where(idx // experts == node, -1), weights).float()
            assert torch.equal(y, total.bfloat16()), f"rank {self.rank}, call {number}"
        us = self.us(lambda: layer(*calls[0], num_tokens_bound=self.tokens))
        return f"{OVERLAP_CALLS} calls of two chunks without a mismatch, {self.sms} SMs for NCCL, {us:.0f} us a call in a row"

    def time(self) -> str:
        call, found = self.call(self.tokens), []
        for chunks in CHUNKS:
            layer = self.made(chunks)
            us, start = self.us(lambda layer=layer: layer(*call)), time.perf_counter()
            for _ in range(TURNS):
                layer(*call, num_tokens_bound=self.tokens)
            host = 1e6 * (time.perf_counter() - start) / TURNS
            torch.cuda.synchronize()
            replay = self.us(self.captured(layer, call, self.tokens)[0].replay) if self.graphs else float("nan")
            found.append(f"{chunks}: {us:.0f}, {host:.0f}, {replay:.0f}")
        before = replace(self.layer.traffic)
        self.layer(*call)
        sent = {name: value - vars(before)[name] for name, value in vars(self.layer.traffic).items()}
        return f"{self.tokens} tokens, us by chunks (a call, its host without a wait, in a graph) {'; '.join(found)}; a call sends {sent}"

    def trace(self) -> str:
        call = self.call(self.tokens)
        turns: dict[str, Callable[[], object]] = {"a call": lambda: self.layer(*call)}
        if self.graphs:
            turns["a replay"] = self.captured(self.layer, call, self.tokens)[0].replay
        return "; ".join(f"{name}: {self.traced(turn)}" for name, turn in turns.items())

    def traced(self, turn: Callable[[], object]) -> str:
        """When each kernel of NCCL and each launch of a turn ran, in microseconds, and how long both did."""
        turn()
        torch.cuda.synchronize()
        dist.barrier()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            turn()
            torch.cuda.synchronize()
        names = {"mega_moe": "launch", "SendRecv": "rows", "AllGather": "counts"}
        spans = sorted(
            (one.time_range.start, one.time_range.end, said)
            for one in profile.events()
            for part, said in names.items()
            if part in one.name and "Memcpy" not in one.name
        )
        assert spans, "the profiler saw no kernel"
        first, (launches, rows) = spans[0][0], ([one[:2] for one in spans if one[2] == kind] for kind in ("launch", "rows"))
        both = sum(max(0.0, min(one[1], other[1]) - max(one[0], other[0])) for one in launches for other in rows)
        listed = ", ".join(f"{said} {begin - first:.0f} to {end - first:.0f}" for begin, end, said in spans)
        return f"{listed}; both {both:.0f} us"

    def lose(self) -> str:
        store = dist.distributed_c10d._get_default_store()
        self.layer(*self.call())
        torch.cuda.synchronize()
        dist.barrier()
        if self.rank == self.ranks - 1:
            print(f"rank {self.rank}: ends", flush=True)
            os._exit(0)
        told = ""
        try:
            self.layer(*self.call())
            self.layer.experts.synchronize()
        except WatchdogError as error:
            told = str(error)
        assert f"rank {self.ranks - 1} did not report a wait" in told, told
        backend = dist.get_backend()
        dist.destroy_process_group()
        dist.init_process_group(backend, store=dist.PrefixStore("left", store), rank=self.rank, world_size=self.ranks - 1)
        left = problem_of(self.ranks - 1, self.tokens)
        alone = MoE(replace(left, num_ranks=1), joined(self.every[:-1]), launch="mega_moe")
        again = MoE(left, self.every[self.rank], domain=1, launch="mega_moe")  # of one rank, too
        for number in range(SHARED_CALLS):
            call = self.call(problem=left)
            assert torch.equal(again(*call), sum_of_nodes(alone, call, left.num_ranks).bfloat16()), f"rank {self.rank}, call {number}"
        return f"told: {told}; {SHARED_CALLS} calls of those that are left without a mismatch"


def run(given: argparse.Namespace) -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(0 if given.one_gpu else int(os.environ["LOCAL_RANK"]))
    os.environ.update(SURVIVING)  # torchrun has set the first to 1
    if given.one_gpu:
        os.environ.update({"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1", "GLOO_SOCKET_IFNAME": "lo"})
    disable_multicast()
    limit = timedelta(seconds=GROUP_S) if "lose" in given.checks else None
    dist.init_process_group("gloo" if given.one_gpu else "nccl", timeout=limit)
    one = Rank(rank, ranks, given.domain, given.tokens, not given.one_gpu, given.chunks, given.sms)
    for name in given.checks:
        said = one.calls(given.calls) if name == "calls" else getattr(one, name)()
        print(f"rank {rank} of {ranks}, {given.domain} a node: {name}: {said}\n", end="", flush=True)
    torch.cuda.synchronize()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("--domain", type=at_least(1), required=True, help="ranks of a node")
    parser.add_argument("--ranks", type=at_least(1), default=4, help="of `prepare`")
    parser.add_argument("--calls", type=at_least(1), default=1000, help="that are compared")
    parser.add_argument("--tokens", type=at_least(8), default=512, help="of a rank, at most")
    parser.add_argument("--chunks", type=at_least(1), help="of the layer, which chooses by default")
    parser.add_argument("--sms", type=at_least(0), default=NETWORK_SMS, help="of a GPU that launches of `overlap` leave to NCCL")
    parser.add_argument("--one-gpu", action="store_true", help="all ranks on the first GPU, rows by gloo")
    parser.add_argument("--checks", type=lambda text: text.split(","), default=["calls"], help="some of " + ", ".join(CHECKS))
    given = parser.parse_args()
    if unknown := set(given.checks) - set(CHECKS):
        parser.error(f"--checks {', '.join(sorted(unknown))}: must be some of {', '.join(CHECKS)}")
    if given.what == "prepare":
        print(f"{prepare(given)} kernels compiled")
    else:
        run(given)


if __name__ == "__main__":
    main()
