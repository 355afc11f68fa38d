"""The expert-parallel kernels on GPUs: their bits on small cases, their times beside the fused kernel and its stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeGuard

import torch
import torch.distributed as dist

from ..arch import SM90
from ..artifact.store import ArtifactStore
from ..cases import Case, random_case
from ..kernels.moe.halves.config import DispatchGemmConfig, EpConfig, GemmCombineConfig
from ..kernels.moe.halves.layouts.pool import pool_rows
from ..kernels.moe.halves.layouts.symmetric import symmetric_buffer
from ..kernels.moe.halves.tuned_fields import HALVES, tuned_fields
from ..kernels.moe.sm90.config import Sm90Config
from ..problem import Problem
from ..quant import MICRO_SCALING, encode_ue8m0
from ..recipe import F32
from ..reference import route
from ..runtime.buffers import Inputs
from ..runtime.ep.buffers import RowActivations
from ..runtime.ep.layer import EpMoE
from ..runtime.symmetric_memory import SymmetricBuffer
from ..target import Target
from .ep_reference import combined, expert_places, linear1_rows
from .fusion import time_stages
from .point import FP8, SEED, Layer, Point
from .timing import Times, launches_of, synchronize, time_back_to_back

SMALL = Problem(hidden=512, intermediate=256, num_experts=8, topk=3, num_ranks=2, max_tokens_per_rank=40, recipe=FP8)
BATCHES = ((40, 23), (0, 40), (3, 2), (40, 40))
LAUNCHES = 200
VARIANT_REPEATS = 5
MANY_TOKENS, FEW_LAUNCHES = 8192, 3
VALUES = {"on": True, "off": False}
DEFAULTS: tuple[str, ...] = HALVES
SWITCHED_OFF = (
    "dispatch token_saving=off",
    "dispatch saving_experts=0",
    "dispatch token_sorting=off",
    "dispatch block_wise=off",
    "dispatch rows=gathered",
    "dispatch tail_sms=8",
    "dispatch tail_sms=16",
    "dispatch tail_sms=32",
    "dispatch cluster=1",
    "dispatch group_m=8",
    "dispatch task_tokens=2",
    "dispatch task_tokens=8",
    "combine scatter=off",
    "combine interleaved=off",
    "combine interleaved=off token_blocks=4",
    "combine cluster=1",
    "combine group_m=8",
    "combine task_tokens=2",
)
"""Each optimisation on its own, and what else a configuration could be."""


def swiglu(rows: torch.Tensor) -> torch.Tensor:
    """Of gate and up side by side."""
    gate, up = rows.float().chunk(2, dim=1)
    return (torch.nn.functional.silu(gate) * up).bfloat16()


def without_clamp(problem: Problem) -> Problem:
    """The same layer with the activation that `swiglu` is."""
    return replace(problem, activation_clamp=None)


@dataclass(frozen=True)
class Variant:
    """A kernel with some fields other than those that are chosen; "dispatch" and "combine" alone are the kernels as they are."""

    name: str

    @property
    def fields(self) -> dict[str, Any]:
        """By name."""
        pairs = (one.split("=") for one in self.name.split()[1:])
        return {name: VALUES[value] if value in VALUES else int(value) if value.isdigit() else value for name, value in pairs}

    @property
    def dispatches(self) -> bool:
        """Which of the two kernels it is."""
        return self.name.split()[0] == "dispatch"

    def config(self, problem: Problem, target: Target, **fields: Any) -> EpConfig:
        """Of a problem without a clamp; `fields` are those of all variants.  Raises `ConfigError`."""
        kind: type[EpConfig] = DispatchGemmConfig if self.dispatches else GemmCombineConfig
        return kind.choose(problem, target, problem.max_tokens_per_rank, **{**fields, **self.fields})


def check_bits(rank: int, store: ArtifactStore, small: Problem, dispatch: dict[str, Any], combine: dict[str, Any]) -> dict[str, Any]:
    """Launches on small exact cases whose rows and y have the reference's bits: how many elements there were, and how many differ."""
    elements = unequal = 0
    for number, tokens in enumerate(BATCHES):
        case = random_case(small, tokens, number, mask=0.2, skew=number % 2 == 1)
        own = case.to("cuda").weights[rank]
        layer = EpMoE(small, own, activation=swiglu, store=store, dispatch=dispatch, combine=combine)
        acts = [draw_activations(case, other) for other in range(small.num_ranks)]
        rows, wanted = linear1_rows(case, rank), combined(case, acts)[rank]
        inputs = Inputs(*(one[rank].cuda() for one in (case.x, case.x_sf, case.topk_idx, case.topk_weights)))
        y = torch.empty(tokens[rank], small.hidden, dtype=torch.bfloat16, device="cuda")
        for _ in range(LAUNCHES // len(BATCHES)):
            layer.route(inputs)
            layer.rows.fill_(float("nan"))
            layer.launch_dispatch()
            layer.acts.values.copy_(acts[rank].values)
            layer.acts.scales.copy_(acts[rank].scales)
            y.fill_(float("nan"))
            layer.launch_combine(y)
            layer.synchronize()
            found = layer.rows.cpu()
            places = expert_places(case, rank, route(small, case.topk_idx))
            pairs = [*((found[place], one) for place, one in zip(places, rows, strict=True)), (y.cpu(), wanted)]
            elements += sum(one.numel() for _, one in pairs)
            unequal += sum(int((a.view(torch.int16) != b.view(torch.int16)).sum()) for a, b in pairs)
        layer.symmetric.close()
    counted = torch.tensor([elements, unequal], device="cuda")
    dist.all_reduce(counted)
    return {"elements": int(counted[0]), "unequal": int(counted[1]), "launches": LAUNCHES}


def draw_activations(case: Case, rank: int) -> RowActivations:
    """Of a rank."""
    return draw_rows(case.problem, torch.Generator().manual_seed(rank))


def draw_rows(problem: Problem, generator: torch.Generator) -> RowActivations:
    """Small integers, with scales that are powers of two where there are any, of all rows of the pool."""
    shape, form = (pool_rows(problem), problem.intermediate), problem.formats.activations
    values = torch.randint(-2, 3, shape, generator=generator).float()
    if form.scale is None:
        return RowActivations.of(values.bfloat16(), form)
    scales = torch.exp2(torch.randint(-2, 2, (shape[0], form.scales_of(shape[1])), generator=generator).float())
    if form.scale == F32:
        return RowActivations.ordered(values.to(torch.float8_e4m3fn), scales)
    return RowActivations.ordered(MICRO_SCALING[form.element].encode(values), encode_ue8m0(scales))


def configs_of(point: Point, target: Target, variants: Iterable[Variant]) -> dict[str, EpConfig]:
    """By the variants' names."""
    shared = {"saving_experts": as_of_many(point)}
    problem = without_clamp(point.problem)
    return {one.name: one.config(problem, target, **(shared if one.dispatches else {})) for one in variants}


def as_of_many(point: Point) -> int:
    """Neighbouring experts of a rank for which a token is fetched once, so that as many rows cross as with so many ranks as would send the
    point's part of the slots: with token saving two ranks have less traffic than eight.  0: all of them."""
    if point.remote is None:
        return 0
    others = max(1, round(1 / (1 - point.remote)) - 1)
    return -(-point.problem.experts_per_rank // others)


def ep_point(
    point: Point, layer: Layer, store: ArtifactStore, fused_config: Sm90Config, variants: Sequence[Variant], watchdog_ns: int
) -> dict[str, Any]:
    """Times of the two kernels and of their variants, beside the fused kernel and its stages on the same tokens; all ranks together.
    Variants of dispatch that ask for other tables are timed after the others."""
    problem, tokens = without_clamp(point.problem), point.tokens
    target = Target(SM90, fused_config.num_sms, torch.cuda.get_device_name())
    fields = {"saving_experts": as_of_many(point)}
    configs = configs_of(point, target, variants)
    region = symmetric_buffer(problem, any(one.keeps_rows for one in configs.values()))
    memory = SymmetricBuffer.allocate(problem, region=region)
    ep = EpMoE(problem, layer.weights_for(FP8), activation=swiglu, store=store, symmetric=memory, dispatch=fields, watchdog_ns=watchdog_ns)
    inputs = Inputs(*point.draw(SEED))
    y, other = (torch.empty(tokens, problem.hidden, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    ep.route(inputs)
    synchronize()
    ep.launch_dispatch()
    ep.activate()
    ep.launch_combine(y)
    ep.synchronize()
    # Not before: on eight ranks a GPU has no room for what the activation takes in between beside all that follows.
    torch.cuda.empty_cache()
    symmetric = SymmetricBuffer.allocate(problem, fused_config.arch)
    fused, unfused = layer.bind(store, fused_config, symmetric, watchdog_ns), layer.bind_stages(store, fused_config, symmetric, watchdog_ns)
    fused.buffers.load(inputs)
    synchronize()
    fused(other)
    fused.synchronize()
    rows = rows_of(ep)
    difference = float((y.float() - other.float()).norm() / other.float().norm())
    candidates: dict[str, Callable[[], None]] = {"fused": partial(fused, other), "unfused": partial(unfused, other)}
    own, differing = bind_variants({FP8: ep}, store, configs, {FP8: y})
    candidates |= own
    launches = launches_of(tokens) if tokens <= MANY_TOKENS else FEW_LAUNCHES
    times = time_back_to_back(candidates, launches, VARIANT_REPEATS)
    times |= time_other_tables(ep, store, configs, inputs, launches)
    own_time = alone(ep, inputs, launches)
    record = {
        "point": asdict(point),
        "rows": rows,
        "gb_per_s": {name: algorithm_bandwidth(problem, rows, one) for name, one in (("dispatch", times["dispatch"]), ("alone", own_time))},
        "symmetric_bytes": ep.symmetric.num_bytes,
        "difference": difference,
        "differing": differing,
        "us": {name: asdict(one) for name, one in times.items()},
        "tuned": {half: dict(tuned_fields(half, problem, tokens, target.gpu)) for half in HALVES},
        "dispatch_alone_us": asdict(own_time),
        "stages_us": time_stages(unfused, other, launches),
    }
    candidates.clear()
    own.clear()
    symmetric.close()
    ep.symmetric.close()
    return record


def bind_variants(
    layers: Mapping[str, EpMoE], store: ArtifactStore, configs: Mapping[str, EpConfig], ys: Mapping[str, torch.Tensor]
) -> tuple[dict[str, Callable[[], None]], list[str]]:
    """Kernels by name, on the memory of the layer that has their number formats, but those that ask for other tables than it has; and the
    names of those of combine that make another y than `ys` has of that layer, where they all write."""
    found: dict[str, Callable[[], None]] = {}
    wanted, differing = {recipe: ys[recipe].clone() for recipe in layers}, []
    for name, config in configs.items():
        recipe = config.problem.recipe
        ep, y = layers[recipe], ys[recipe]
        if asks_for_other_tables(config, ep):
            continue
        kernel = ep.bind(store.load(config, any_sources=True))
        if not isinstance(config, DispatchGemmConfig):
            ep.point_at(kernel, y)
            y.fill_(float("nan"))
            kernel.launch()
            ep.synchronize()
            differing += [] if torch.equal(y, wanted[recipe]) else [name]
            clear_counters(ep.symmetric)
        found[name] = kernel.launch
    return found, differing


def time_other_tables(ep: EpMoE, store: ArtifactStore, configs: Mapping[str, EpConfig], inputs: Inputs, launches: int) -> dict[str, Times]:
    """Of the variants of a layer's dispatch that ask for other tables than it has, which are made before; they are the layer's no more."""
    times: dict[str, Times] = {}
    for name, config in configs.items():
        if config.problem.recipe == ep.problem.recipe and asks_for_other_tables(config, ep):
            kernel = ep.bind(store.load(config, any_sources=True))
            ep.route(inputs, config)
            times |= time_back_to_back({name: kernel.launch}, launches, VARIANT_REPEATS)
    return times


def clear_counters(symmetric: SymmetricBuffer) -> None:
    """Of all ranks, after a launch of a kernel that others will follow: it leaves what it has counted to the next one that counts as it
    does.  Launches of a repeat are an even number, after which a kernel finds the set that it has cleared."""
    regions = [symmetric_buffer(symmetric.problem, keeps_rows) for keeps_rows in (False, True)]
    region = next(one for one in regions if one.size == symmetric.num_bytes)
    synchronize()
    for placement in region:
        if placement.field.name in ("arrivals", "finished"):
            region.view(symmetric.sym, placement.field.name).zero_()
    synchronize()


def asks_for_other_tables(config: EpConfig, ep: EpMoE) -> TypeGuard[DispatchGemmConfig]:
    """Whether a kernel is of dispatch, and takes other routing tables than those of a layer's."""
    return isinstance(config, DispatchGemmConfig) and tables_of(config) != tables_of(ep.dispatch_config)


def tables_of(config: DispatchGemmConfig) -> tuple[int, bool]:
    """What routing tables depend on."""
    return config.fetched_for, config.token_sorting


def rows_of(ep: EpMoE) -> dict[str, int]:
    """Rows that this rank fetches from others, from the present tables, and the pairs of the rows that it has."""
    fetched = ep.memory.view("recv_pairs").tolist()
    return {"fetched": sum(fetched) - fetched[ep.symmetric.rank], "pairs": int(ep.memory.view("expert_rows").sum())}


def algorithm_bandwidth(problem: Problem, rows: Mapping[str, int], times: Times) -> float:
    """GB/s of dispatch: the bytes of a row for each of this rank's pairs, whoever sent it and however often, over the time."""
    return rows["pairs"] * problem.formats.activations.row_bytes(problem.hidden) / times.median / 1e3


def alone(ep: EpMoE, inputs: Inputs, launches: int) -> Times:
    """Of dispatch without a tile: no expert has a row."""
    ep.route(inputs)
    ep.memory.view("expert_rows").zero_()
    return time_back_to_back({"dispatch": ep.launch_dispatch}, launches, VARIANT_REPEATS)["dispatch"]
