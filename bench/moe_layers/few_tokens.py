"""A few tokens on one GPU: what `moe` launches beside the four launches of more tokens, the fused kernel on one rank and, in FP8, SGLang's
Triton kernels, in BF16 torch and FlashInfer; beside E4M3 weights what `MegaMoE` launches with E2M1 weights.

Every launch of a graph has experts of its own, so that weights come from memory and not from L2.  In the same turns torch sums numbers in
memory, which says how fast the GPU reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from itertools import cycle
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.timing import GRAPH_LAUNCHES, graph_of, time_graphs
from megamoe_dsl.kernels.decode.config import MOST_TOKENS
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import SCALE_BLOCK, ExpertWeights
from megamoe_dsl.quant.packed_tiles import weight_shapes
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from megamoe_dsl.runtime.experts import moe
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.preparation import compile_ahead, expert_kernels, layer_kernels
from megamoe_dsl.target import Target
from moe_layers.baselines import TORCH_LAYER, torch_layer
from moe_layers.flashinfer_moe import flashinfer_layers
from moe_layers.inputs import TOLERANCE, run_each
from moe_layers.launch_table import FOUR, FUSED
from moe_layers.others import Sites
from moe_layers.point import ExpertPoint
from moe_layers.run import fused_layer, fused_problem, is_fused
from moe_layers.sglang_triton import sglang_layers
from moe_layers.steps import SteppedExperts

LAUNCHES, READING, PACKED = "four launches", "reading", "fp8xmxfp4"
REPLAYS, TURNS = 200, 13
BOUNDS = (1, 2, 4, 8, MOST_TOKENS)
NO_SITES = Sites()


READ_BYTES = 1 << 30
COLUMNS = (
    *("Point", "reading", "one launch", "1.35 x reading + 4", "TB/s", "of reading"),
    *("four launches", "fused", "SGLang", "torch", "FlashInfer", "E2M1", "E2M1, fused"),
)


def compile_few(points: Sequence[ExpertPoint], target: Target, folder: Path) -> int:
    """Compiles what the folder lacks; how many kernels."""
    wanted: list[Any] = []
    for point in points:
        wanted += [*point.layer.configs(target, point.tokens), *expert_kernels(point.layer, target, [point.tokens])]
        if is_fused(point):
            wanted += layer_kernels(fused_problem(point.layer, point.tokens), target, ())
            wanted += layer_kernels(fused_problem(point.layer, MOST_TOKENS, PACKED), target, BOUNDS)
    return compile_ahead(dict.fromkeys(wanted), ArtifactStore(folder))


def draw_calls(point: ExpertPoint, weights: LayerOperands) -> list[ExpertCall]:
    """One for each launch of a graph: normal tokens, and experts drawn evenly."""
    layer, generator = point.layer, torch.Generator("cuda").manual_seed(point.tokens)
    calls = []
    for _ in range(GRAPH_LAUNCHES):
        x = torch.randn(point.tokens, layer.hidden, device="cuda", generator=generator).bfloat16()
        chosen = torch.rand(point.tokens, layer.num_experts, device="cuda", generator=generator).topk(layer.topk, dim=1)
        calls.append(ExpertCall(layer, x, chosen.indices.contiguous(), chosen.values.softmax(dim=1).contiguous(), weights))
    return calls


def launch(call: ExpertCall) -> torch.Tensor:
    """What users call."""
    w = call.operands
    return moe(call.x, w.w1, w.w1_sf, w.w2, w.w2_sf, call.topk_idx, call.topk_weights)


def run_few(
    points: Sequence[ExpertPoint], target: Target, folder: Path, sites: Sites = NO_SITES, replays: int = REPLAYS
) -> Iterator[dict[str, Any]]:
    """A record of each point; models one after another.  Of `sites` SGLang and FlashInfer run."""
    return run_each(points, lambda point, weights: run_point(point, target, ArtifactStore(folder), weights, replays, sites))


def run_point(
    point: ExpertPoint, target: Target, store: ArtifactStore, weights: LayerOperands, replays: int, sites: Sites
) -> dict[str, Any]:
    """Results of graph replays that differ from the four launches' in a bit; then times."""
    calls = draw_calls(point, weights)
    four = SteppedExperts(point.layer.configs(target, point.tokens), store, calls[0].x.device)
    expected = [four(replace(call)).clone() for call in calls]
    found = [launch(call) for call in calls]  # before a graph is captured
    graph = graph_of(lambda: [y.copy_(launch(call)) for call, y in zip(calls, found, strict=True)])
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(replays):
        graph.replay()
        for y, other in zip(found, expected, strict=True):
            wrong += (y.view(torch.int16) != other.view(torch.int16)).any()
            y.zero_()
    ways: dict[str, list[Callable[[], Any]]] = {
        FOUR: [partial(launch, call) for call in calls],
        LAUNCHES: [partial(four, call) for call in calls],
    }
    bits = set(ways)
    if is_fused(point):
        fused = fused_layer(calls[0], store).func
        ways[FUSED] = [partial(fused, call.x, call.topk_idx, call.topk_weights) for call in calls]
        packed = packed_ways(point, calls, store.folder)
        wrong += sum(not torch.equal(one(), other()) for one, other in zip(*packed.values(), strict=True))
        ways |= packed
        bits |= packed.keys()
    if not point.layer.formats.scaled:
        ways[TORCH_LAYER] = [torch_layer(call, weights.w1, weights.w2) for call in calls]
        ways |= flashinfer_layers(calls, sites.flashinfer) if sites.flashinfer else {}
    elif sites.sglang:
        ways |= sglang_layers(calls, sites.sglang)
    others = {name: zip(some, expected, strict=True) for name, some in ways.items() if name not in bits}
    errors = {name: float(torch.tensor([relative(one(), y) for one, y in pairs]).max()) for name, pairs in others.items()}  # NaN if any is
    read = torch.ones(READ_BYTES // 4, device="cuda")
    ways[READING] = [read.sum]
    times = time_graphs({name: in_turn(some) for name, some in ways.items()}, TURNS)
    met = mean(len(call.topk_idx.unique()) for call in calls)
    found = read_times(point, met, read.nbytes / times[READING].median)
    passed = not int(wrong) and all(one < TOLERANCE for one in errors.values())
    us = {name: asdict(one) for name, one in times.items()}
    return {"point": str(point), "tokens": point.tokens, "us": us, "errors": errors, "experts_met": met, **found, "passed": passed}


@lru_cache(maxsize=1)
def packed_layer(problem: Problem, folder: Path) -> MegaMoE:
    """With E2M1 weights of random codes and equal scales; packing them takes seconds."""
    drawn: dict[str, torch.Tensor] = {}
    for name, (parts, rows, k) in weight_shapes(problem).items():
        drawn[name] = torch.randint(0, 256, (problem.num_experts, parts * rows, k // 2), dtype=torch.uint8, device="cuda")
        drawn[f"{name}_sf"] = torch.full((problem.num_experts, parts * rows, k // SCALE_BLOCK), 121, dtype=torch.uint8, device="cuda")
    return MegaMoE(problem, ExpertWeights(**drawn), store=ArtifactStore(folder), bounds=BOUNDS)


def packed_ways(point: ExpertPoint, calls: Sequence[ExpertCall], folder: Path) -> dict[str, list[Callable[[], Any]]]:
    """What a layer launches with so few tokens, and its fused kernel."""
    layer = packed_layer(fused_problem(point.layer, MOST_TOKENS, PACKED), folder)

    def fused(*tensors: torch.Tensor) -> torch.Tensor:
        few, layer.few = layer.few, None
        y: torch.Tensor = layer(*tensors, num_tokens_bound=point.tokens)
        layer.few = few
        return y

    routed = [(call.x, call.topk_idx, call.topk_weights) for call in calls]
    return {PACKED: [partial(layer, *one) for one in routed], f"{PACKED}, fused": [partial(fused, *one) for one in routed]}


def read_times(point: ExpertPoint, met: float, rate: float) -> dict[str, float]:
    """Bytes of the weights of the experts that are met, how many are read in a microsecond of this run, and what so many take."""
    layer = point.layer
    size = met * layer.formats.weights.row_bytes(3 * layer.hidden * layer.intermediate)
    return {"weight_bytes": size, "bytes_per_us": rate, "least_us": size / rate}


def relative(y: torch.Tensor, expected: torch.Tensor) -> float:
    """Error by norm."""
    return float((y.double() - expected.double()).norm() / expected.double().norm())


def few_table(records: Sequence[dict[str, Any]]) -> str:
    """Of docs/lab/one_gpu.md: medians, and how many times ours the others are; columns that have anything."""
    rows = [COLUMNS]
    for record in records:
        us = {name: one["median"] for name, one in record["us"].items()}
        ours = us[FOUR]
        sglang, flashinfer = (
            min((one for name, one in us.items() if name.startswith(library)), default=None) for library in ("sglang", "flashinfer")
        )
        others = (us[LAUNCHES], us.get(FUSED), sglang, us.get(TORCH_LAYER), flashinfer, us.get(PACKED), us.get(f"{PACKED}, fused"))
        shares = f"{1.35 * record['least_us'] + 4:.1f}", f"{record['weight_bytes'] / ours / 1e6:.2f}", f"{record['least_us'] / ours:.2f}"
        found = (record["point"], f"{record['least_us']:.1f}", f"**{ours:.1f}**", *shares)
        rows.append((*found, *("" if one is None else f"{one:.1f} ({one / ours:.2f})" for one in others)))
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    lines = [f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]])


def in_turn(launches: Sequence[Callable[[], Any]]) -> Callable[[], None]:
    """One of them at a time, round and round."""
    turns = cycle(launches)
    return lambda: next(turns)()
