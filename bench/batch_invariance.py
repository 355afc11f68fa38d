"""Proves on one GPU that a token's y has the same bits in every batch (docs/explanation/batch_invariance.md), through the public API.

    python bench/batch_invariance.py [--out FOLDER] [--sizes 1,2,64]       compiles what the cache lacks; exit code 1 if any bit differs
    python bench/batch_invariance.py --price       times GEMMs with and without `batch_invariant=True`

Every way to compute the layer gets the same tokens in batches of many sizes, each size with two draws of companions in random order, in
launches and in CUDA graphs.  Bits are compared with those of all tokens in one batch, by the first way of its group.  Sums cancel
(bench/fuzzing/trial.py), so that y is made of roundings; those of normal numbers are compared, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fuzzing.trial import CANCELLING, EXACT, FuzzedCall, case_of, repeated
from megamoe_dsl import GemmProblem, MegaMoE, Problem, choose, gemm, gemm_weights, moe
from megamoe_dsl.arch import SM90
from megamoe_dsl.bench.timing import time_graphs
from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.cases import Case
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.quant import quantize_e2m1, quantize_e4m3_f32, quantize_weight_e4m3
from megamoe_dsl.runtime.ep.layer import EpMoE
from megamoe_dsl.runtime.preparation import compile_ahead, expert_kernels, grid_target, halves_kernels, layer_kernels, target_or_at_hand
from records import save

MOST = 2048
SIZES = (1, 2, 3, 5, 8, 13, 16, 24, 32, 48, 64, 100, 128, 200, 256, 384, 512, 1000, 1024, 1536, MOST)
SHAPE = Problem(2048, 1024, 8, 4, max_tokens_per_rank=MOST, recipe="fp8xfp8")
RING = 2048
GEMM = (2112, 7168)
"""N and K of a GEMM of which a tuned tile has two CTAs add up a half of K each."""
DRAWS = 2
DEVICE = "cuda"
Rows = Callable[[torch.Tensor], torch.Tensor]
"""From indices of tokens to their y, by a call of them alone."""


@dataclass(frozen=True)
class Way:
    """A way to compute what the others of its group compute, to the bit; `promised` is False for what is only shown."""

    group: str
    name: str
    rows: Rows
    promised: bool = True


def some(values: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Rows of any type."""
    return values.view(torch.uint8)[tokens].view(values.dtype)


def layer_rows(problem: Problem, case: Case, sizes: Sequence[int], **options: Any) -> Rows:
    """By `MegaMoE` on quantized tokens, whose kernel is chosen for as many as there are."""
    layer = MegaMoE(problem, case.weights[0], bounds=sizes, bf16_inputs=False, **options)

    def rows(tokens: torch.Tensor) -> torch.Tensor:
        given = [some(field[0], tokens) for field in (case.x, case.topk_idx, case.topk_weights, case.x_sf)]
        y: torch.Tensor = layer(*given[:3], x_sf=given[3], num_tokens_bound=len(tokens))
        return y

    return rows


def in_a_graph(rows: Rows) -> Rows:
    """The same call, captured after a first one, and replayed twice."""

    def replayed(tokens: torch.Tensor) -> torch.Tensor:
        rows(tokens)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = rows(tokens)
        for _ in range(2):
            y.fill_(float("nan"))
            graph.replay()
        return y

    return replayed


def layers_of(recipe: str, values: str, sizes: Sequence[int]) -> Iterator[Way]:
    """The fused layer, in launches, graphs and padded batches; the unfused one, and a ring."""
    problem = replace(SHAPE, recipe=recipe)
    target = grid_target(None)
    kernels = [one for rows in (None, RING) for one in layer_kernels(problem, target, sizes, bf16_inputs=False, pool_rows=rows)]
    compile_ahead([*kernels, *layer_kernels(problem, target, (MOST, sizes[0]), bf16_inputs=False, fused=False)])
    case, group = case_of(problem, FuzzedCall((MOST,), values=values)).to(DEVICE), f"{recipe} {values}"
    fused = layer_rows(problem, case, sizes)
    yield Way(group, "MegaMoE", fused)
    yield Way(group, "MegaMoE in a CUDA graph", in_a_graph(fused))
    yield Way(group, "MegaMoE on a ring", layer_rows(problem, case, sizes, pool_rows=RING))
    yield Way(group, "MegaMoE(fused=False)", layer_rows(problem, case, (sizes[0],), fused=False))


def experts_of(recipe: str, sizes: Sequence[int]) -> Iterator[Way]:
    """`moe` on BF16 tokens; of FP8 weights `MegaMoE` with weighed results, too, and halves around the activation in torch."""
    shape = (SHAPE.hidden, SHAPE.intermediate, SHAPE.num_experts, SHAPE.topk)
    compile_ahead(expert_kernels(ExpertLayer(*shape, recipe=recipe), target_or_at_hand(), (*sizes, MOST)))
    problem = replace(SHAPE, weigh_results=True)
    case = case_of(problem, FuzzedCall((MOST,), values=CANCELLING)).to(DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = repeated(torch.randn(MOST, SHAPE.hidden, generator=generator, device=DEVICE).bfloat16(), 1)
    (w,) = case.weights
    weights: tuple[Any, ...] = (w.fc1, w.fc1_sf, w.fc2, w.fc2_sf)
    if recipe == "bf16xbf16":
        shapes = [tensor.shape for tensor in (w.fc1, w.fc2)]
        drawn = [torch.randn(*one, generator=generator, device=DEVICE).mul_(one[2] ** -0.5).bfloat16() for one in shapes]
        weights = (drawn[0], None, drawn[1], None)

    def rows(tokens: torch.Tensor) -> torch.Tensor:
        return moe(x[tokens], *weights, case.topk_idx[0][tokens], case.topk_weights[0][tokens])

    yield Way(f"moe {recipe}", "moe", rows)
    yield Way(f"moe {recipe}", "moe in a CUDA graph", in_a_graph(rows))
    if recipe == "fp8xfp8":
        codes, scales = quantize_e4m3_f32(x)
        own = replace(case, x=[codes], x_sf=[scales])
        compile_ahead(layer_kernels(problem, grid_target(None), sizes, bf16_inputs=False))
        yield Way(f"moe {recipe}", "MegaMoE(weigh_results=True)", layer_rows(problem, own, sizes))


def halves_of(recipe: str, sizes: Sequence[int]) -> Iterator[Way]:
    """`EpMoE` with an activation in torch that takes each row alone; its kernels are the same for all `sizes`."""
    problem = replace(SHAPE, recipe=recipe)
    compile_ahead(halves_kernels(problem, grid_target(None)))
    case = case_of(problem, FuzzedCall((MOST,), values=CANCELLING if problem.formats.scaled else EXACT)).to(DEVICE)
    x = repeated(torch.randn(MOST, SHAPE.hidden, generator=torch.Generator(DEVICE).manual_seed(0), device=DEVICE).bfloat16(), 1)
    half = problem.intermediate

    def activation(rows: torch.Tensor) -> torch.Tensor:
        return (torch.nn.functional.silu(rows[:, :half].float()) * rows[:, half:].float()).bfloat16()

    layer = EpMoE(problem, case.weights[0], activation=activation)
    yield Way(f"EpMoE {recipe}", "EpMoE", lambda tokens: layer(x[tokens], case.topk_idx[0][tokens], case.topk_weights[0][tokens]))


def gemms_of(recipe: str, sizes: Sequence[int]) -> Iterator[Way]:
    """`gemm` to FP32, with batch_invariant and without."""
    n, k = GEMM
    problem, target = GemmProblem(n, k, output="f32", recipe=recipe), target_or_at_hand()
    compile_ahead([choose(problem, target, size, batch_invariant=whole) for size in (*sizes, MOST) for whole in (True, False)])
    generator = torch.Generator(DEVICE).manual_seed(0)
    a = repeated(torch.randn(MOST, k, generator=generator, device=DEVICE), 1)
    half = torch.randn(n, k // 2, generator=generator, device=DEVICE)
    b = torch.cat([half, -half], dim=1)
    a_sf: torch.Tensor | None = None
    b_sf: torch.Tensor | None = None
    if recipe == "bf16xbf16":
        a, b = a.bfloat16(), b.bfloat16()
    else:
        a, a_sf = quantize_e4m3_f32(a)
        b, b_sf = quantize_weight_e4m3(b) if recipe == "fp8xfp8" else gemm_weights(*(one.to(DEVICE) for one in quantize_e2m1(b.cpu())))

    def rows(tokens: torch.Tensor, whole: bool) -> torch.Tensor:
        scales = None if a_sf is None else a_sf[tokens]
        return gemm(some(a, tokens), scales, b, b_sf, out_dtype=torch.float32, batch_invariant=whole)

    yield Way(f"gemm {recipe}", "gemm(batch_invariant=True)", lambda tokens: rows(tokens, True))
    yield Way(f"gemm {recipe}", "gemm", lambda tokens: rows(tokens, False), promised=False)


def compare(way: Way, wanted: torch.Tensor, sizes: Sequence[int]) -> dict[str, Any]:
    """A way's batches beside the bits of all tokens at once: sizes in which any differed, and how many elements."""
    generator, unequal, elements, differing = torch.Generator().manual_seed(0), 0, 0, []
    for size in sizes:
        wrong = 0
        for _ in range(DRAWS):
            tokens = torch.randperm(MOST, generator=generator)[:size].to(DEVICE)
            wrong += unequal_bits(way.rows(tokens), wanted[tokens])
            elements += size * wanted.shape[1]
        unequal += wrong
        differing += [size] if wrong else []
    passed = not unequal and elements > 0
    found = {"batches": DRAWS * len(sizes), "elements": elements, "unequal": unequal, "sizes": differing}
    return {"group": way.group, "way": way.name, "promised": way.promised, **found, "passed": passed}


def unequal_bits(one: torch.Tensor, other: torch.Tensor) -> int:
    """Elements whose bits differ; two NaN are unequal, so that nothing compares as nothing."""
    kind = torch.int16 if one.element_size() == 2 else torch.int32
    return int(((one.view(kind) != other.view(kind)) | one.isnan()).sum())


def records_of(ways: Iterator[Way], sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A record for each way; the first of a group says what is right."""
    wanted: dict[str, torch.Tensor] = {}
    for way in ways:
        if way.group not in wanted:
            wanted[way.group] = way.rows(torch.arange(MOST, device=DEVICE)).clone()
        yield compare(way, wanted[way.group], sizes)


WAYS: dict[str, Callable[[Sequence[int]], Iterator[Way]]] = {
    **{
        f"layers {recipe} {values}": partial(layers_of, recipe, values)
        for recipe in ("fp8xfp8", "fp8xmxfp4")
        for values in (CANCELLING, "normal")
    },
    **{f"experts {recipe}": partial(experts_of, recipe) for recipe in ("fp8xfp8", "bf16xbf16")},
    **{f"halves {recipe}": partial(halves_of, recipe) for recipe in ("fp8xfp8", "bf16xbf16")},
    **{f"gemms {recipe}": partial(gemms_of, recipe) for recipe in GemmConfig.recipes},
}
"""What makes the ways of one or two groups, for batches of these sizes."""


def all_ways(sizes: Sequence[int]) -> Iterator[Way]:
    return (way for make in WAYS.values() for way in make(sizes))


def prices() -> Iterator[str]:
    """A line for each recipe and number of rows: microseconds of a launch in a graph, without the flag and with it."""
    n, k = GEMM
    drawn = torch.randn(n, k)
    weights = {"fp8xfp8": quantize_weight_e4m3(drawn[None]), "fp8xmxfp4": gemm_weights(*quantize_e2m1(drawn), SM90.name)}
    for rows in (1, 16, 32, 48, 64, 128):
        a = [one.to(DEVICE) for one in quantize_e4m3_f32(torch.randn(rows, k))]
        for recipe, made in weights.items():
            b = [one.to(DEVICE).reshape(one.shape[-2:]) for one in made]
            calls = {str(flag): partial(gemm, *a, *b, batch_invariant=flag) for flag in (False, True)}
            timed = time_graphs(calls)
            yield f"{rows} rows, {recipe}: " + ", ".join(f"{one.median:.1f}" for one in timed.values())


def line_of(record: dict[str, Any]) -> str:
    verdict = "equal" if record["passed"] else f"{record['unequal']:,} elements differ, in batches of {record['sizes']}"
    return f"{record['group']}: {record['way']}, {record['batches']} batches, {record['elements']:,} elements: {verdict}"


def read_sizes(text: str) -> tuple[int, ...]:
    """As in 1,2,64.  Raises ValueError."""
    sizes = tuple(sorted({int(one) for one in text.split(",")}))
    if not all(1 <= one <= MOST for one in sizes):
        raise ValueError
    return sizes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the record")
    parser.add_argument("--sizes", type=read_sizes, default=SIZES, help=f"tokens of a batch, 1 to {MOST}, as in 1,2,64")
    parser.add_argument("--price", action="store_true", help="time GEMMs with and without the flag instead")
    given = parser.parse_args()
    if given.price:
        print("\n".join(prices()))
        return 0
    records = []
    for record in records_of(all_ways(given.sizes), given.sizes):
        print(line_of(record), flush=True)
        records.append(record)
    print(save(given.out, "batch_invariance", records))
    return 0 if all(one["passed"] for one in records if one["promised"]) else 1


if __name__ == "__main__":
    sys.exit(main())
