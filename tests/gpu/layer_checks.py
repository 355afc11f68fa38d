"""Checks of the module `MegaMoE` that need GPUs: graphs, streams, shared buffers, torch.compile, reserved SMs, the watchdog.

Each is a function of a `Bench`, called on all ranks together; it raises AssertionError on a rank that finds something wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gpu_options import CheckedLayer, GpuOptions
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.check import Expectation, sample_rows
from megamoe_dsl.cases import TokenInputs, random_inputs, random_weights
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import MICRO_SCALING, ExpertWeights, quantize_e4m3_f32
from megamoe_dsl.recipe import F32
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.preparation import layer_kernels
from megamoe_dsl.runtime.watchdog import WatchdogError
from megamoe_dsl.target import Target


def configs(layer: CheckedLayer) -> set[Any]:
    """Everything that the checks run."""
    grids, gpu = (layer.sms, layer.sms - layer.reserved), Target.typical(layer.arch).gpu
    return {config for grid in grids for config in layer_kernels(layer.problem, Target(layer.arch, grid, gpu), [layer.bound])}


@dataclass
class Bench:
    """A layer on this rank, and BF16 inputs."""

    rank: int
    layer: CheckedLayer
    problem: Problem
    store: ArtifactStore
    weights: ExpertWeights
    moe: MegaMoE

    @classmethod
    def make(cls, rank: int, layer: CheckedLayer, folder: Path) -> Bench:
        problem, store = layer.problem, ArtifactStore(folder)
        weights = random_weights(problem, rank, 1, "cuda")
        return cls(rank, layer, problem, store, weights, MegaMoE(problem, weights, store=store, bounds=(layer.bound,)))

    @property
    def most(self) -> int:
        """Tokens of a rank."""
        return self.problem.max_tokens_per_rank

    def few(self, tokens: int) -> int:
        """So many tokens of 512, as many times fewer of a smaller layer, at least one."""
        return max(1, tokens * self.most // 512)

    def quantized(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """BF16 tokens as `quant` defines them for the layer."""
        tokens = self.problem.formats.activations
        return quantize_e4m3_f32(x) if tokens.scale == F32 else MICRO_SCALING[tokens.element].quantize(x)

    def inputs(self, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x in BF16, topk_idx, topk_weights."""
        _, _, idx, weights = random_inputs(self.problem, self.rank, tokens, seed, "cuda", mask=0.1)
        generator = torch.Generator("cuda").manual_seed(seed * 100 + self.rank)
        return torch.randn(tokens, self.problem.hidden, generator=generator, device="cuda").bfloat16(), idx, weights

    def uneven(self, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """No tokens on odd ranks."""
        return self.inputs(0 if self.rank % 2 else self.few(20), seed)

    def same(self, a: torch.Tensor, b: torch.Tensor) -> None:
        if not torch.equal(a, b):
            raise AssertionError(f"rank {self.rank}: {int((a != b).sum())} of {a.numel()} elements differ")


def pre_dispatch_bytes(b: Bench) -> None:
    x, idx, weights = b.inputs(b.few(300), 1)
    b.moe(x, idx, weights)
    want = (*b.quantized(x), idx, weights)
    for name, tensor in zip(("x", "x_sf", "topk_idx", "topk_weights"), want, strict=True):
        b.same(b.moe.memory.view(name)[: len(x)].view(torch.uint8), tensor.view(torch.uint8))


def bf16_and_quantized_agree_with_the_reference(b: Bench) -> None:
    x, idx, weights = b.inputs(b.most, 2)
    codes, sf = b.quantized(x)
    y = b.moe(x, idx, weights)
    b.same(y, b.moe(codes, idx, weights, x_sf=sf, check=True))
    everyone = [random_weights(b.problem, r, 1, "cuda") for r in range(b.problem.num_ranks)] if b.rank == 0 else None
    found = Expectation(b.problem, TokenInputs(codes, sf, idx, weights), sample_rows(b.most, 8), everyone).check(y)
    if found is not None and not found.passed:
        raise AssertionError(f"{found}")


def every_bound_gives_the_same_bits(b: Bench) -> None:
    bound = b.layer.bound
    given = b.inputs(bound - b.rank % 4, 3)
    b.same(b.moe(*given), b.moe(*given, num_tokens_bound=bound))


def graph_with_empty_ranks(b: Bench) -> None:
    given, others = b.uneven(4), [b.uneven(5 + i) for i in range(5)]
    wanted = [b.moe(*other) for other in others]
    y = b.moe(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        b.moe(*given, out=y)
    for _ in range(b.layer.replays):
        for other, want in zip(others, wanted, strict=True):
            for target, source in zip(given, other, strict=True):
                target.copy_(source)
            y.fill_(float("nan"))
            graph.replay()
            b.same(y, want)


def layers_share_a_buffer(b: Bench) -> None:
    weights = random_weights(b.problem, b.rank, 2, "cuda")
    other, alone = (MegaMoE(b.problem, weights, store=b.store, symmetric=s) for s in (b.moe.symmetric, None))
    for seed in range(min(10, b.most // 2)):
        given = b.inputs(seed * b.most // 73, seed)
        first, second = b.moe(*given), other(*given)
        b.same(second, alone(*given))
        b.same(first, b.moe(*given))
    alone.symmetric.close()


def side_stream(b: Bench) -> None:
    given = b.inputs(b.few(100), 7)
    want = b.moe(*given)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        later = [tensor.clone() for tensor in given]
        y = b.moe(*later)
    torch.cuda.current_stream().wait_stream(stream)
    b.same(y, want)


def compiled(b: Bench, **options: str) -> None:
    given = b.inputs(b.few(64), 8)

    def step(x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return b.moe(x * 2, idx, weights) + 1

    run, want = torch.compile(step, fullgraph=True, **options), step(*given).clone()
    for _ in range(3):  # a tree of graphs records the second and replays the third
        b.same(run(*given), want)


def calls_without_use(b: Bench) -> None:
    """Of two calls that a graph could merge, or drop, it does neither: every rank counts both."""
    given = b.inputs(b.few(64), 13)

    def step(x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        b.moe(x, idx, weights)
        return b.moe(x, idx, weights) * 2

    want = b.moe(*given) * 2
    run = torch.compile(step, backend="inductor", fullgraph=True)
    run(*given)
    b.moe.stats.zero_()
    b.same(run(*given), want)
    twice = b.moe.stats.clone()
    b.moe.stats.zero_()
    b.moe(*given)
    b.same(twice, b.moe.stats * 2)


def wild_indices(b: Bench) -> None:
    x, idx, weights = b.inputs(b.most, 15)
    masked = torch.rand(idx.shape, device=idx.device, generator=torch.Generator(idx.device).manual_seed(b.rank)) < 0.2
    want = b.moe(x, torch.where(masked, -1, idx), weights)
    for wild in (b.problem.num_experts, (1 << 32) + 1, -(1 << 62)):
        b.same(b.moe(x, torch.where(masked, wild, idx), weights), want)


def statistics(b: Bench) -> None:
    given = b.inputs(b.few(200), 9)
    b.moe.stats.zero_()
    b.moe(*given)
    counts = torch.bincount(given[1][given[1] >= 0], minlength=b.problem.num_experts)
    dist.all_reduce(counts)
    b.same(b.moe.stats.long(), counts.view(b.problem.num_ranks, -1)[b.rank])


def reserved_sms(b: Bench) -> None:
    """Kernels on other streams hold some SMs; a layer that reserved them runs beside those kernels, not after them."""
    small = MegaMoE(b.problem, b.weights, store=b.store, reserved_sms=b.layer.reserved)
    given = b.inputs(b.few(200), 10)
    want = b.moe(*given)
    b.same(small(*given), want)
    dist.barrier()
    torch.cuda.synchronize()
    others = [torch.cuda.Stream() for _ in range(4)]
    for stream in others:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000_000)  # one CTA for about a second
    y = small(*given)
    torch.cuda.current_stream().synchronize()
    ended = sum(stream.query() for stream in others)
    torch.cuda.synchronize()
    b.same(y, want)
    if ended:
        raise AssertionError(f"rank {b.rank}: ended after {ended} of the kernels that hold other SMs")
    small.symmetric.close()


def weights_in_place(b: Bench) -> None:
    given = b.inputs(b.few(50), 11)
    before = b.moe(*given)
    b.moe.load_weights(random_weights(b.problem, b.rank, 3, "cuda"))
    changed = b.moe(*given)
    b.moe.load_weights(b.weights)
    b.same(b.moe(*given), before)
    if torch.equal(changed, before):
        raise AssertionError("other weights gave the same y")


def watchdog(b: Bench) -> None:
    """Rank 0 stays away; the others must say who waits, for what, and for whom.  Their contexts are dead afterwards: the last check."""
    seconds = 1.0
    for kernel in (one for of_bound in b.moe.kernels.values() for one in of_bound.kernels):
        kernel.arguments.values.watchdog_ns = int(seconds * 1e9)
    given = b.inputs(b.few(10), 12)
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    store = dist.distributed_c10d._get_default_store()
    if b.rank:
        start = time.monotonic()
        try:
            b.moe(*given)
            b.moe.synchronize()
            message = "no error"
        except WatchdogError as error:
            message = f"ok after {time.monotonic() - start:.1f} s: {error}"
        store.set(f"watchdog{b.rank}", message)
        return
    for rank in range(1, b.problem.num_ranks):
        message = store.get(f"watchdog{rank}").decode()
        print(f"  {message}")
        if not (message.startswith("ok after") and f"rank {rank}, SM" in message and "; rank 0 did not report" in message):
            raise AssertionError(f"rank {rank}: {message}")


CHECKS: dict[str, Callable[[Bench], None]] = {
    "pre_dispatch_bytes": pre_dispatch_bytes,
    "reference": bf16_and_quantized_agree_with_the_reference,
    "bounds": every_bound_gives_the_same_bits,
    "graph": graph_with_empty_ranks,
    "shared": layers_share_a_buffer,
    "stream": side_stream,
    "aot_eager": partial(compiled, backend="aot_eager"),
    "inductor": partial(compiled, backend="inductor"),
    "graph_trees": partial(compiled, mode="reduce-overhead"),
    "unused": calls_without_use,
    "wild": wild_indices,
    "statistics": statistics,
    "reserved": reserved_sms,
    "weights": weights_in_place,
    "watchdog": watchdog,
}


def work(
    rank: int, jobs: list[str], report: Callable[[int, dict[str, Any]], None], *, ranks: int, folder: Path, options: GpuOptions
) -> None:
    """The worker process: `CHECKS` by name, in this order."""
    bench = Bench.make(rank, options.layer(ranks), folder)
    for index, name in enumerate(jobs):
        print(f"rank {rank} of {ranks}: {name}", flush=True)
        CHECKS[name](bench)
        if name != "watchdog":
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
        report(index, {})
