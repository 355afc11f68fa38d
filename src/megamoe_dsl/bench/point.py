"""A point of a benchmark: a shape, tokens per rank and ranks; and the timing of its kernels on one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist

from ..artifact.store import ArtifactStore
from ..cases import TokenInputs, random_inputs, random_weights
from ..cases.routing import check_remote
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.roofline import Load, bound_of
from ..kernels.moe.sm90.choose import given_pool_rows
from ..options.option import numbers
from ..options.points import PointOptions
from ..presets import layer_problem, preset
from ..problem import Problem, ProblemError
from ..quant import ExpertWeights, weight_names
from ..quant.expansion import fp8_weights
from ..recipe import BF16
from ..runtime.buffers import Inputs, RankBuffers
from ..runtime.rank_kernel import RankKernel
from ..runtime.symmetric_memory import SymmetricBuffer
from .check import Expectation, sample_rows
from .timing import BATCHES, Times, launches_of, run_earlier_batches, synchronize, time_back_to_back, time_graphs
from .variant import variant_name

CLAMP = 10.0
SEED = 1
SAMPLES_PER_RANK = 4
FP8 = "fp8xfp8"


SHAPE = ("hidden", "intermediate", "experts", "topk")  # Fields that replace those of the preset.
LETTERS = dict(zip(SHAPE, ("H", "I", "E", "top"), strict=True))


@dataclass(frozen=True)
class Point:
    """A shape, tokens per rank, ranks."""

    preset: str | None  # None for a shape that is given in full
    tokens: int
    ranks: int
    experts_per_rank: int | None = None  # replaces the experts: 32 of Flash on one rank are its share of eight
    # fraction of the slots that goes to other ranks' experts: with 7/8 two ranks send over NVLink what eight would; None routes uniformly
    remote: float | None = None
    hidden: int | None = None  # and intermediate, experts, topk: of a shape without a preset; or they replace the preset's
    intermediate: int | None = None
    experts: int | None = None
    topk: int | None = None
    recipe: str = FP8  # number formats, by name
    pool_rows: int | None = None  # of the configurations; 0 for what is chosen (kernels/moe/sm90/choose.py)
    combine: str = BF16  # of the problem: the element in which results travel back

    @property
    def name(self) -> str:
        """flash El32 EP2 R0.875 M=512, or H4096 I2048 E256 top6 EP8 M=8"""
        shape = [f"{LETTERS[name]}{getattr(self, name)}" for name in SHAPE if getattr(self, name) is not None]
        share = [] if self.experts_per_rank is None else [f"El{self.experts_per_rank}"]
        remote = [] if self.remote is None else [f"R{self.remote:g}"]
        preset = [] if self.preset is None else [self.preset]
        formats = [] if self.recipe == FP8 else [self.recipe]
        pool = [] if self.pool_rows is None else [f"P{self.pool_rows}"]
        results = [] if self.combine == BF16 else [f"combine={self.combine}"]
        return " ".join([*preset, *shape, *share, f"EP{self.ranks}", *remote, *formats, *results, *pool, f"M={self.tokens}"])

    @property
    def all_experts(self) -> int | None:
        """Experts over all ranks; None if they follow from `experts_per_rank`."""
        if self.experts_per_rank is not None:
            return None
        return preset(self.preset).num_experts if self.experts is None and self.preset is not None else self.experts

    @property
    def problem(self) -> Problem:
        """The layer at this point.  Raises `ProblemError`."""
        given = {"hidden": self.hidden, "intermediate": self.intermediate, "num_experts": self.experts, "topk": self.topk}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        changes |= {"num_ranks": self.ranks, "recipe": self.recipe, "combine": self.combine, "activation_clamp": CLAMP}
        if self.experts_per_rank is not None:
            changes["num_experts"] = self.experts_per_rank * self.ranks
        return layer_problem(self.preset, max(1, self.tokens), **changes)

    @property
    def pool(self) -> dict[str, Any]:
        """Rows of the token pool, as a field of a configuration."""
        return {"pool_rows": given_pool_rows(self.problem, self.pool_rows)}

    @property
    def layer(self) -> Problem:
        """The problem for one token: equal for all points that can share a layer's weights."""
        return replace(self.problem, max_tokens_per_rank=1, combine=BF16)

    @property
    def load(self) -> Load:
        uniform = (self.ranks - 1) / self.ranks
        return Load.expected(self.problem, self.tokens, uniform if self.remote is None else self.remote)

    def draw(self, seed: int) -> TokenInputs:
        return random_inputs(self.problem, dist.get_rank(), self.tokens, seed, "cuda", remote=self.remote)


class Layer:
    """Weights of a shape on this rank, for all its points; expanded to FP8 for FP8 kernels that are timed beside another recipe."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.weights = random_weights(problem, dist.get_rank(), SEED, "cuda")
        self.shared: dict[str, RankBuffers] = {}

    @cached_property
    def all_weights(self) -> list[ExpertWeights] | None:
        """Weights of all ranks for the reference, drawn on first use because they are large; None except on rank 0."""
        if dist.get_rank() != 0:
            return None
        others = range(1, self.problem.num_ranks)
        return [self.weights, *(random_weights(self.problem, other, SEED, "cuda") for other in others)]

    def weights_for(self, recipe: str) -> ExpertWeights:
        """This rank's weights for a recipe: the layer's own, or FP8."""
        return self.weights if recipe == self.problem.recipe else fp8_weights(self.weights)

    def bind(self, store: ArtifactStore, config: MegaMoeConfig, symmetric: SymmetricBuffer, watchdog_ns: int) -> RankKernel:
        """Loads a kernel and binds it to a symmetric buffer and this layer's weights, of which all kernels of a recipe share a copy."""
        recipe = config.problem.recipe
        weights = self.shared.get(recipe) or self.weights_for(recipe)
        kernel = RankKernel(store.load(config, any_sources=True), symmetric, weights, watchdog_ns)
        if recipe not in self.shared:  # without the symmetric buffer, which is freed at the end of a point
            self.shared[recipe] = kernel.buffers.rebound(config, torch.empty(0, dtype=torch.uint8, device=symmetric.sym.device))
        return kernel


class CurrentLayer:
    """Keeps the last layer that `make` made: consecutive points of one shape share its weights."""

    def __init__(self, make: Callable[[Problem], Any]) -> None:
        self.make = make
        self._layer: Any = None
        self._shape: Problem | None = None

    def of(self, point: Point) -> Any:
        """The layer of the point.  The previous shape's weights are freed first, unless the caller still holds its layer."""
        if self._layer is None or self._shape != point.layer:
            self._layer = None  # frees the last shape's weights first
            self._layer, self._shape = self.make(point.problem), point.layer
        return self._layer


def measure_point(
    point: Point,
    layer: Layer,
    store: ArtifactStore,
    configs: list[MegaMoeConfig],
    watchdog_ns: int,
    graphs: bool = True,
    others: Callable[[Mapping[str, torch.Tensor]], Mapping[str, Callable[[], None]]] | None = None,
) -> dict[str, Any]:
    """Checks and times all kernels.  `others` makes further launches from y of each kernel, which take turns with them.  All ranks
    together; the record is complete on rank 0."""
    problem, tokens, inputs = point.problem, point.tokens, point.draw(SEED)
    symmetric = SymmetricBuffer.allocate(problem, configs[0].arch, **point.pool)
    kernels = {name_of(config, point): layer.bind(store, config, symmetric, watchdog_ns) for config in configs}
    outputs = {name: torch.empty(tokens, problem.hidden, dtype=torch.bfloat16, device="cuda") for name in kernels}
    candidates: dict[str, Callable[[], None]] = {name: partial(kernel, outputs[name]) for name, kernel in kernels.items()}
    buffers = next(iter(kernels.values())).buffers
    run_earlier_batches(point.draw, lambda batch: buffers.load(Inputs(*batch)), candidates.values())
    buffers.load(Inputs(*inputs))
    expectation = Expectation(problem, inputs, sample_rows(tokens, SAMPLES_PER_RANK), layer.all_weights)
    record: dict[str, Any] = {"point": asdict(point), "name": point.name, "num_sms": configs[0].num_sms, "variants": {}}
    weights = sum(getattr(buffers.weights, name).nbytes for name in weight_names(problem))
    record |= {"symmetric_bytes": symmetric.num_bytes, "weight_bytes": weights, "earlier_batches": BATCHES}
    for name, kernel in kernels.items():
        kernel.buffers.stats.zero_()
        synchronize()
        record["variants"][name] = {"check": check_launch(kernel, outputs[name], expectation), "made_by": store.origin(kernel.config)}
    record["slowest_rank"] = slowest_rank(point, buffers.stats)
    candidates |= {} if others is None else others(outputs)
    for _ in range(3):
        for run in candidates.values():
            run()
    times = time_back_to_back(candidates, launches_of(tokens))
    graph_times: dict[str, Times] = time_graphs(candidates) if graphs else {}
    for name in candidates:
        entry = record["variants"].setdefault(name, {})
        entry["us"] = asdict(times[name])
        entry["graph_us"] = asdict(graph_times[name]) if graphs else None
    for kernel in kernels.values():
        kernel.synchronize()
    summarize(record, point)
    candidates.clear()
    symmetric.close()
    return record


def name_of(config: MegaMoeConfig, point: Point) -> str:
    """A kernel's name in the record of a point: its variant, with the recipe before it if that is not the point's."""
    recipe = config.problem.recipe
    return variant_name(config) if recipe == point.recipe else f"{recipe} {variant_name(config)}"


def check_launch(kernel: RankKernel, y: torch.Tensor, expectation: Expectation) -> dict[str, Any] | None:
    """Launches into a y full of NaN; returns the check for the record on rank 0, None elsewhere.  All ranks together."""
    y.fill_(float("nan"))
    kernel(y)
    kernel.synchronize()
    check = expectation.check(y)
    return None if check is None else {**asdict(check), "passed": check.passed}


def slowest_rank(point: Point, stats: torch.Tensor) -> dict[str, Any]:
    """Load and bound of the rank with the largest bound, from the tokens of its experts (`stats`); all ranks together."""
    load = Load(int(stats.sum()), int((stats > 0).sum()), point.load.remote)
    work = bound_of(point.problem, load, torch.cuda.get_device_name())
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {**asdict(load), "bound_us": work.bound_us, "bound_by": work.bound_by})
    found: dict[str, Any] = max(everyone, key=lambda one: one["bound_us"])
    return found


def summarize(record: dict[str, Any], point: Point) -> None:
    """Adds work, ceilings and the figures of the fastest correct variant (of the fastest, if none is correct) to a record."""
    work = bound_of(point.problem, point.load, torch.cuda.get_device_name())
    checks = {name: entry["check"] for name, entry in record["variants"].items() if name.startswith("block_m")}  # of the point's recipe
    right = [name for name, check in checks.items() if check is None or check["passed"]]
    best = min(right or checks, key=lambda name: record["variants"][name]["us"]["median"])
    entry = record["variants"][best]
    us = entry["us"]["median"]
    record["work"] = {**asdict(work), "bound_us": work.bound_us, "bound_by": work.bound_by}
    record["best"] = {
        "variant": best,
        "us": us,
        "graph_us": entry["graph_us"]["median"] if entry["graph_us"] else None,
        "tflops_per_rank": work.flop / us / 1e6,
        "hbm_tb_per_s": work.hbm_bytes / us / 1e6,
        "nvlink_gb_per_s": work.nvlink_bytes / us / 1e3,
        "fraction_of_ceiling": work.bound_us / us,
        "fraction_of_slowest_rank": record["slowest_rank"]["bound_us"] / us,
    }


def points_of(given: PointOptions, remote: float | None = None, least_tokens: int = 0) -> list[Point]:
    """All combinations of presets, ranks and tokens, with valid problems.  Raises `ProblemError`, also below `least_tokens`."""
    counts, groups = numbers("tokens", given.tokens, least_tokens), numbers("ranks", given.ranks, 1)
    shape = {name: getattr(given, name) for name in SHAPE}
    if given.experts is not None and given.experts_per_rank is not None:
        raise ProblemError("experts_per_rank", given.experts_per_rank, "left out with --experts")
    own = given.preset is None and any(value is not None for value in shape.values())
    names = [None] if own else (given.DEFAULT_PRESETS if given.preset is None else given.preset).split(",")
    combine = BF16 if given.combine is None else given.combine
    points = [
        Point(name, count, group, given.experts_per_rank, remote, **shape, recipe=given.recipe, pool_rows=given.pool_rows, combine=combine)
        for group in groups
        for name in names
        for count in counts
    ]
    for point in points:
        if point.all_experts is not None and point.all_experts % point.ranks:
            raise ProblemError("ranks", point.ranks, f"a divisor of {point.all_experts}, the number of experts")
        check_remote(point.problem, remote)
    return points
