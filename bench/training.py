"""Times a MoE layer with its gradients on one GPU, in BF16 and in FP8, beside layers of others: each pass, and both.

    python bench/training.py prepare FOLDER [--points qwen3-30b-a3b:4096 ...] [--ways moe ...]      where the DSL is: compiles the kernels
    python bench/training.py run FOLDER [--points ...] [--ways moe ...] [--turns N] [OTHERS] [--out FOLDER]      where a GPU is
    python bench/training.py power FOLDER [--points ...] [--ways moe ...] [--turns N] [OTHERS] [--out FOLDER]
    python bench/training.py counters FOLDER [--points ...] [OTHERS] [--out FOLDER]      where Nsight Compute is, too
    python bench/training.py table FILE      anywhere: a table of docs/lab/training.md

OTHERS: `--quack SITE`, a folder with unpacked wheels of quack-kernels and einops, and with CuTe DSL under a `site-packages`: sonic-moe's
step by quack's GEMMs; `--scattermoe SITE`, with the sources of ScatterMoE: its layer.

A record has microseconds of each candidate in turns, and of a dense product of torch, microseconds of our stages, bytes kept between the
passes and at most allocated beyond weights and their gradients, and the relative distance of every gradient from float64, ours and theirs.
One of `power` has microseconds and joules of both passes at the GPU's power cap, and microseconds after a pause.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gemms.counters import COUNTERS, profiled, read_counters
from megamoe_dsl.artifact.workers import compile_into
from megamoe_dsl.bench.timing import REPEATS, time_back_to_back
from megamoe_dsl.json_file import FOLDER_VARIABLE
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.expert_routing.problem import QuantizeProblem, QuantizeWeightsProblem
from megamoe_dsl.kernels.registry import choose
from megamoe_dsl.runtime import expert_gradients as stages
from megamoe_dsl.runtime.experts import FP8, moe
from megamoe_dsl.runtime.k_grouped_gemm import QuantizedBoth, most_padded, padded_rows, quantize_both
from megamoe_dsl.target import Target
from moe_layers.passes import DENSE_SIZE, Passes, dense_product, summary
from moe_layers.quack_gemms import interleaved
from moe_layers.training_layers import GROUPED_MM, QUACK, TrainingSites, training_layers
from records import save_each
from script_options import at_least
from training_tables import COUNTED, DENSE, KERNELS, table

TARGET = Target.typical("sm_90a")
SHAPES = {"qwen3-30b-a3b": (2048, 768, 128, 8), "qwen3-next": (2048, 512, 512, 10), "sonic-1536": (1536, 256, 128, 8)}
SHAPES |= {"deepseek-v3-64": (7168, 2048, 64, 8)}
"""Hidden, intermediate, experts and top-k; of DeepSeek-V3 a quarter of the experts."""
TOKENS = (4096, 16384, 32768)
NAMES = ("x", "w1", "w2", "topk_weights")
LAUNCHES = 2
WAYS = "moe", "moe-recompute", "moe-one-thread", "moe-fp8", "moe-fp8-quantized", GROUPED_MM
OURS, RECOMPUTED, ONE_THREAD, IN_FP8, QUANTIZED, _ = WAYS
"""`moe-one-thread` has its backward pass in the thread that asks for it, `moe-fp8-quantized` weights that are quantized before."""
BF16_ERROR, FP8_ERROR = 0.006, 0.1
"""Relative, of gradients: BF16 rounds by 2 to 4 thousandths, E4M3 by 2 to 3 percent of each operand."""
COUNT_LIMIT_S = 240
COUNTED_BY = {**COUNTERS, "dram": "dram__throughput.avg.pct_of_peak_sustained_elapsed"}


@dataclass(frozen=True)
class TrainingPoint:
    """A shape by name, and tokens."""

    name: str
    tokens: int

    @classmethod
    def parse(cls, text: str) -> TrainingPoint:
        name, tokens = text.split(":")
        if name not in SHAPES:
            raise argparse.ArgumentTypeError(f"points = {text!r}: must be one of {', '.join(SHAPES)}, a colon and tokens")
        return cls(name, int(tokens))

    def __str__(self) -> str:
        return f"{self.name}:{self.tokens}"

    @property
    def layer(self) -> ExpertLayer:
        return ExpertLayer(*SHAPES[self.name], recipe="bf16xbf16", preactivations=True)

    def configs(self, ways: Sequence[str]) -> list[Any]:
        """Of both passes."""
        rows = self.tokens * self.layer.topk
        backward = [choose(one, TARGET, rows) for one in self.layer.backward()]
        in_fp8 = self.configs_in_fp8 if IN_FP8 in ways else []
        return [*self.layer.configs(TARGET, self.tokens), *backward, *in_fp8]

    @property
    def configs_in_fp8(self) -> list[Any]:
        layer = replace(self.layer, recipe=FP8)
        rows, hidden, own = self.tokens * layer.topk, layer.hidden, layer.intermediate
        gate_up, gradient, *padded = layer.backward()
        most = most_padded(layer.num_experts, rows)
        quantized = [QuantizeProblem(columns, True, columns == 2 * own) for columns in dict.fromkeys((2 * own, hidden, own))]
        weights = [QuantizeWeightsProblem(n, k, turned) for n, k in ((2 * own, hidden), (hidden, own)) for turned in (False, True)]
        multiplied = [choose(one, TARGET, rows) for one in (gate_up, gradient)] + [choose(one, TARGET, most) for one in padded]
        return [*layer.configs(TARGET, self.tokens), *multiplied, *(choose(one, TARGET, 1) for one in (*quantized, *weights))]

    @property
    def flop(self) -> float:
        """Of the forward pass."""
        layer = self.layer
        return 6.0 * self.tokens * layer.topk * layer.hidden * layer.intermediate


def draw_layer(shape: ExpertLayer, tokens: int, held: int, seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """x, W1 and W2 of so many experts, and top-k weights, by name; the experts of every token; the gradient of y."""
    generator = torch.Generator("cuda").manual_seed(seed)
    draw: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
    logits = torch.randn(tokens, shape.num_experts, device="cuda", generator=generator)
    weights, idx = logits.softmax(1).topk(shape.topk)
    made = (
        torch.randn(tokens, shape.hidden, **draw),
        torch.randn(held, 2 * shape.intermediate, shape.hidden, **draw).mul_(shape.hidden**-0.5),
        torch.randn(held, shape.hidden, shape.intermediate, **draw).mul_(shape.intermediate**-0.5),
        weights / weights.sum(1, keepdim=True),
    )
    return dict(zip(NAMES, (one.requires_grad_() for one in made), strict=True)), idx, torch.randn(tokens, shape.hidden, **draw)


class Layer:
    """Tensors of a point on the GPU, and the ways to compute it."""

    def __init__(self, point: TrainingPoint, sites: TrainingSites, ways: Sequence[str] = WAYS) -> None:
        self.tensors, self.idx, dy = draw_layer(point.layer, point.tokens, point.layer.num_experts, point.tokens)
        made = list(self.tensors.values())
        forwards: dict[str, Callable[[], torch.Tensor]] = {OURS: self.ours, ONE_THREAD: self.ours}
        forwards |= {RECOMPUTED: partial(self.ours, recompute=True), IN_FP8: partial(self.ours, recipe=FP8)}
        if QUANTIZED in ways:
            forwards[QUANTIZED] = partial(self.ours, recipe=FP8, quantized=stages.quantize_experts(*made[1:3]))
        forwards = {name: one for name, one in forwards.items() if name in ways}
        leaves = dict.fromkeys(forwards, made)
        self.others = training_layers(ways, sites)
        for name, other in self.others.items():
            x, w1, w2, given = made
            w1 = interleaved(w1.detach()).requires_grad_() if other.in_turn else w1
            leaves[name], forwards[name] = [x, w1, w2, given], partial(other.run, x, w1, w2, self.idx, given)
        once = [name for name, other in self.others.items() if not other.again]
        self.passes = Passes(forwards, leaves, dy, once, one_thread=[ONE_THREAD])

    def ours(self, **more: Any) -> torch.Tensor:
        x, w1, w2, weights = self.tensors.values()
        return moe(x, w1, None, w2, None, self.idx, weights, **more)

    def first_gradients(self, name: str) -> list[torch.Tensor]:
        """Of x, w1, w2 and top-k weights, those of w1 and w2 of the first expert alone, gate before up."""
        dx, dw1, dw2, dweights = self.passes.gradients(name)
        in_turn = name in self.others and self.others[name].in_turn
        first = dw1[0].unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1) if in_turn else dw1[0]
        return [dx, first.clone(), dw2[0].clone(), dweights]

    def in_float64(self) -> list[torch.Tensor]:
        """Gradients of x, w1, w2 and top-k weights, expert by expert; those of weights of the first expert alone."""
        x, w1, w2, weights = (one.detach() for one in self.tensors.values())
        dy = self.passes.dy
        dx, dweights, first = torch.zeros_like(x, dtype=torch.float64), torch.zeros_like(weights, dtype=torch.float64), list[torch.Tensor]()
        for expert in range(len(w1)):
            tokens, slots = (self.idx == expert).nonzero(as_tuple=True)
            own = [one.double().requires_grad_() for one in (x[tokens], w1[expert], w2[expert], weights[tokens, slots])]
            gate, up = (own[0] @ own[1].T).chunk(2, dim=1)
            rows = (torch.nn.functional.silu(gate) * up) @ own[2].T * own[3][:, None]
            found = torch.autograd.grad(rows, own, dy[tokens].double())
            dx.index_add_(0, tokens, found[0])
            dweights[tokens, slots] = found[3]
            first = first or list(found[1:3])
        return [dx, *first, dweights]

    def stages(self) -> dict[str, Callable[[], Any]]:
        """Our backward pass, stage by stage."""
        x, w1, w2, weights = (one.detach() for one in self.tensors.values())
        dy, stored = self.passes.dy, torch.empty(self.idx.numel(), w1.shape[1], dtype=torch.bfloat16, device="cuda")
        with torch.no_grad():
            moe(x, w1, None, w2, None, self.idx, weights, preactivations=stored)
        plain = stages.unscaled
        ends, sources, positions, *_ = stages.route(dy, self.idx, len(w1), stages.BF16)
        given = weights, *plain(w2.mT), stored, ends, sources, positions, "gate_first", "silu"
        rows, weighted, _ = stages.row_gradients(*plain(dy), *given)
        return {
            "route": lambda: stages.route(dy, self.idx, len(w1), stages.BF16),
            "rows": lambda: stages.row_gradients(*plain(dy), *given),
            "tokens": lambda: stages.token_gradients(*plain(rows), *plain(w1.mT), ends, positions),
            "w1": lambda: stages.weight_gradients(torch.empty_like(w1), rows, x, ends, sources, False),
            "w2": lambda: stages.weight_gradients(torch.empty_like(w2), weighted, dy, ends, sources, True),
            **(self.stages_in_fp8(stored, rows, weighted) if IN_FP8 in self.passes.forwards else {}),
        }

    def stages_in_fp8(self, stored: torch.Tensor, dh: torch.Tensor, weighted: torch.Tensor) -> dict[str, Callable[[], Any]]:
        """The same in FP8."""
        x, w1, w2, weights = (one.detach() for one in self.tensors.values())
        ends, sources, positions, *rows_dy = stages.route(self.passes.dy, self.idx, len(w1), FP8)
        w1_t, w2_t = (stages.quantize_weights(one, True, FP8) for one in (w1, w2))
        given = weights, *w2_t, stored, ends, sources, positions, "gate_first", "silu"
        padded = padded_rows(ends, len(sources))
        tokens, places = stages.numbers_of(padded.sources, sources), stages.numbers_of(positions, padded.places)
        rows, columns_x = quantize_both(dh, padded.sources), quantize_both(x, tokens, rows=False)
        columns_dy, columns_a = (quantize_both(one, at, rows=False) for one, at in ((self.passes.dy, tokens), (weighted, padded.sources)))

        def added(into: torch.Tensor, left: QuantizedBoth, right: QuantizedBoth) -> None:
            stages.add_columns(into, left.codes_t, left.scales_t, right.codes_t, right.scales_t, padded.ends)

        return {
            "fp8 weights": lambda: [stages.quantize_weights(one, turned, FP8) for one in (w1, w2) for turned in (False, True)],
            "fp8 route": lambda: stages.route(self.passes.dy, self.idx, len(w1), FP8),
            "fp8 rows": lambda: stages.row_gradients(*rows_dy, *given),
            "fp8 pad": lambda: stages.numbers_of(padded_rows(ends, len(sources)).sources, sources),
            "fp8 quantize dH": lambda: quantize_both(dh, padded.sources),
            "fp8 quantize x": lambda: quantize_both(x, tokens, rows=False),
            "fp8 quantize w A": lambda: quantize_both(weighted, padded.sources, rows=False),
            "fp8 tokens": lambda: stages.token_gradients(rows.codes, rows.scales, *w1_t, padded.ends, places),
            "fp8 w1": lambda: added(torch.empty_like(w1), rows, columns_x),
            "fp8 w2": lambda: added(torch.empty_like(w2), columns_dy, columns_a),
        }


def distances(found: list[torch.Tensor], expected: list[torch.Tensor]) -> dict[str, float]:
    """Relative, of each gradient."""
    pairs = zip(NAMES, found, expected, strict=True)
    return {name: ((one.double() - other).norm() / other.norm()).item() for name, one, other in pairs}


def run_point(point: TrainingPoint, turns: int, sites: TrainingSites, ways: Sequence[str]) -> dict[str, Any]:
    layer = Layer(point, sites, ways)
    passes, expected = layer.passes, layer.in_float64()
    pairs = (OURS, OURS), (OURS, RECOMPUTED), (IN_FP8, IN_FP8), (IN_FP8, QUANTIZED)
    same = all(passes.same_bits(*pair) for pair in pairs if passes.forwards.keys() >= set(pair))
    errors = {name: distances(layer.first_gradients(name), expected) for name in passes.forwards}
    most = {OURS: BF16_ERROR, IN_FP8: FP8_ERROR, QUANTIZED: FP8_ERROR}
    del expected
    used, of_stages = passes.memory(), time_back_to_back(layer.stages(), LAUNCHES, turns)
    us, tflops = passes.times(turns, point.flop)
    return {
        "point": str(point),
        "shape": SHAPES[point.name],
        "gpu": torch.cuda.get_device_name(),
        "us": {name: asdict(one) for name, one in (of_stages | us).items()},
        "tflops": tflops,
        "bytes": used,
        "errors": errors,
        "tiles": {name: one.tiles for name, one in layer.others.items()},
        "same_bits": same,
        "passed": same and all(error <= most[way] for way, each in errors.items() if way in most for error in each.values()),
    }


def power(point: TrainingPoint, turns: int, sites: TrainingSites, ways: Sequence[str]) -> dict[str, Any]:
    """What both passes take at the GPU's power cap, and what a pause before them changes."""
    found = Layer(point, sites, ways).passes.power(turns)
    flop = {"flop": 3 * point.flop, "dense_flop": 2.0 * DENSE_SIZE**3}
    return {"point": str(point), "shape": SHAPES[point.name], "gpu": torch.cuda.get_device_name(), **flop, **found}


def launch_once(points: list[TrainingPoint], sites: TrainingSites) -> None:
    """What the profiler sees: of every point each stage in a range of its own, warm; prints the names of the kernels that count."""
    for point in points:
        shape = point.layer
        layer = Layer(point, sites, (OURS,))
        runs = {"forward": layer.passes.forwards[OURS], **layer.stages(), DENSE: dense_product()}
        if QUACK in layer.passes.forwards:
            runs[QUACK] = partial(layer.passes.gradients, QUACK)
        for stage in (one for one in KERNELS if one in runs):
            runs[stage]()
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStart()
            runs[stage]()
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStop()
            first, *others = KERNELS[stage]
            parts = shape.hidden // shape.columns(point.tokens) if stage == "forward" else 1
            for name in (first, *others * parts):
                print(f"{point} {name}", flush=True)
        del layer, runs
        gc.collect()


def count(points: list[TrainingPoint], folder: Path, sites: TrainingSites) -> Iterator[dict[str, Any]]:
    """Counters of each kernel of the points, which this script launches again under the profiler."""
    names = [str(point) for point in points]
    given = [word for name, site in sites._asdict().items() if site is not None for word in (f"--{name}", str(site))]
    command = [sys.executable, __file__, "launch", str(folder), "--points", *names, *given]
    printed, table = profiled(command, COUNT_LIMIT_S, COUNTED_BY)
    launched = [line for line in printed if line.split(" ")[0] in names]
    for one in read_counters(launched, table, COUNTED_BY, COUNTED):
        yield {**one, "mhz": one["cycles"] / one["us"], "gpu": torch.cuda.get_device_name()}


def counted(record: dict[str, Any]) -> str:
    percent = "  ".join(f"{name} {record[name]:.0f} %" for name in ("tensor_core", "dram", "l2_sectors", "l2_hits"))
    return f"{record['name']}: {record['us']:.0f} us  {percent}  {record['mhz']:.0f} MHz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run", "power", "counters", "launch", "table"))
    parser.add_argument("folder", type=Path)
    every = [TrainingPoint(name, tokens) for name in SHAPES for tokens in TOKENS]
    parser.add_argument("--points", nargs="*", type=TrainingPoint.parse, default=every)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=WAYS)
    parser.add_argument("--turns", type=at_least(1), default=REPEATS)
    for name in TrainingSites._fields:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    sites = TrainingSites(*(getattr(given, name) for name in TrainingSites._fields))
    if given.what == "table":
        print("\n".join(table(json.loads(given.folder.read_text())["records"], list(SHAPES))))
        return
    if given.what == "prepare":
        configs = dict.fromkeys(config for point in given.points for config in point.configs(given.ways))
        compile_into(given.folder, list(configs), os.cpu_count() or 1)
        return
    os.environ[FOLDER_VARIABLE] = str(given.folder)  # where `moe` finds its kernels
    if given.what == "launch":
        launch_once(given.points, sites)
        return
    if given.what == "counters":
        save_each(given.out, "training_counters", count(given.points, given.folder, sites), counted)
        return
    if given.what == "power":
        save_each(given.out, "training_power", (power(one, given.turns, sites, given.ways) for one in given.points), str)
        return
    records = save_each(given.out, "training", (run_point(point, given.turns, sites, given.ways) for point in given.points), summary)
    raise SystemExit(not all(record["passed"] for record in records))


if __name__ == "__main__":
    main()
