"""Times and traces the two expert-parallel kernels and their variants on GPUs, and writes a results file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import torch
import torch.distributed as dist

from ..artifact.cache import compile_ahead
from ..artifact.store import ArtifactStore, dsl_version
from ..kernels.moe.halves.config import HALVES, DispatchGemmConfig, EpConfig, RoutingTablesConfig
from ..kernels.moe.halves.family import EP_KERNELS, tuned_fields
from ..kernels.moe.halves.layouts.symmetric import Kept, symmetric_buffer
from ..problem import Problem, ProblemError
from ..runtime.buffers import Inputs
from ..runtime.ep.layer import EpMoE
from ..runtime.symmetric_memory import SymmetricBuffer
from ..target import Target
from .host import Host
from .point import SEED, CurrentLayer, Layer, Point
from .results import Recorded, Results, trace_row
from .session import LAUNCHES, LayerRun, run_ranks, traced
from .timing import Times, launches_of, synchronize, time_back_to_back

VARIANT_REPEATS = 5
MANY_TOKENS, FEW_LAUNCHES = 8192, 3
VALUES = {"on": True, "off": False}


def swiglu(rows: torch.Tensor) -> torch.Tensor:
    """SwiGLU of rows that hold gate and up side by side."""
    gate, up = rows.float().chunk(2, dim=1)
    return (torch.nn.functional.silu(gate) * up).bfloat16()


def without_clamp(problem: Problem) -> Problem:
    """The layer without an activation clamp: `swiglu` does not clamp."""
    return replace(problem, activation_clamp=None)


@dataclass(frozen=True)
class Variant:
    """A kernel with fields that replace chosen ones, as in "combine scatter=off"; "combine" alone is the chosen kernel."""

    name: str

    @property
    def fields(self) -> dict[str, Any]:
        pairs = (one.split("=") for one in self.name.split()[1:])
        return {name: VALUES[value] if value in VALUES else int(value) if value.isdigit() else value for name, value in pairs}

    def config(self, problem: Problem, target: Target) -> EpConfig:
        kernel = EP_KERNELS[HALVES.index(self.name.split()[0])]
        return kernel.choose(problem, target, problem.max_tokens_per_rank, **self.fields)


def configs_of(point: Point, target: Target, variants: Iterable[Variant]) -> dict[str, EpConfig]:
    """Configurations by the names of their variants."""
    problem = without_clamp(point.problem)
    return {one.name: one.config(problem, target) for one in variants}


def ep_point(
    point: Point,
    layer: Layer,
    store: ArtifactStore,
    target: Target,
    variants: Sequence[Variant],
    watchdog_ns: int,
    others: Callable[[Inputs, torch.Tensor], Mapping[str, Callable[[], None]]] | None = None,
) -> dict[str, Any]:
    """Times the two kernels and their variants on the same tokens; variants of dispatch with other routing tables come last.  `others`
    makes further launches from the inputs and y, which take turns with them.  All ranks together."""
    problem, tokens = without_clamp(point.problem), point.tokens
    configs = configs_of(point, target, variants)
    memory = SymmetricBuffer.allocate(problem, region=symmetric_buffer(problem, max(one.keeps for one in configs.values())))
    ep = EpMoE(problem, layer.weights_for(point.recipe), activation=swiglu, store=store, symmetric=memory, watchdog_ns=watchdog_ns)
    inputs = Inputs(*point.draw(SEED))
    y = torch.empty(tokens, problem.hidden, dtype=torch.bfloat16, device="cuda")
    ep(inputs.x, inputs.topk_idx, inputs.topk_weights, x_sf=inputs.x_sf if problem.formats.scaled else None, out=y)
    ep.synchronize()
    # Frees what the activation has allocated: on eight ranks a GPU has no room for it beside all that follows.
    torch.cuda.empty_cache()
    rows, launches = rows_of(ep), launches_of(tokens) if tokens <= MANY_TOKENS else FEW_LAUNCHES
    candidates = {} if others is None else dict(others(inputs, y))
    own, differing = bind_variants(ep, store, configs, y)
    candidates |= own
    times = time_back_to_back(candidates, launches, VARIANT_REPEATS)
    times |= time_other_tables(ep, store, configs, inputs, launches)
    activate: Callable[[], Any] = partial(swiglu, ep.rows[: rows["pairs"]])
    between = time_back_to_back({"activation": activate}, launches)["activation"]
    record = {
        "point": asdict(point),
        "rows": rows,
        "symmetric_bytes": memory.num_bytes,
        "differing": differing,
        "us": {name: asdict(one) for name, one in times.items()},
        "tuned": {half: dict(tuned_fields(half, problem, tokens, target.gpu)) for half in HALVES},
        "activation_us": asdict(between),
        "dispatch_alone_us": asdict(alone(ep, inputs, launches)),
    }
    candidates.clear()
    own.clear()
    memory.close()
    return record


def bind_variants(
    ep: EpMoE, store: ArtifactStore, configs: Mapping[str, EpConfig], y: torch.Tensor
) -> tuple[dict[str, Callable[[], None]], list[str]]:
    """Binds the kernels of the layer's recipe to it, except variants of dispatch with other routing tables.  Returns launches by name, and
    the names of combine kernels that write another y."""
    found: dict[str, Callable[[], None]] = {}
    wanted, differing = y.clone(), list[str]()
    for name, config in configs.items():
        if config.problem.recipe != ep.problem.recipe or asks_for_other_tables(config, ep):
            continue
        kernel = ep.bind(store.load(config, any_sources=True))
        if not isinstance(config, DispatchGemmConfig):
            ep.point_at(kernel, y)
            y.fill_(float("nan"))
            kernel.launch()
            ep.synchronize()
            differing += [] if torch.equal(y, wanted) else [name]
            clear_counters(ep.symmetric)
        found[name] = kernel.launch
    return found, differing


def time_other_tables(ep: EpMoE, store: ArtifactStore, configs: Mapping[str, EpConfig], inputs: Inputs, launches: int) -> dict[str, Times]:
    """Times variants of dispatch that read other routing tables than the layer's, whose own tables they overwrite."""
    times: dict[str, Times] = {}
    for name, config in configs.items():
        if config.problem.recipe == ep.problem.recipe and asks_for_other_tables(config, ep):
            kernel = ep.bind(store.load(config, any_sources=True))
            ep.route(inputs, config)
            times |= time_back_to_back({name: kernel.launch}, launches, VARIANT_REPEATS)
    return times


def clear_counters(symmetric: SymmetricBuffer) -> None:
    """Clears the arrival counters of all ranks before another kernel counts in them: a launch leaves its counts to the next launch of the
    same kernel.  A repeat makes an even number of launches, after which the set of counters in use is a cleared one."""
    regions = [symmetric_buffer(symmetric.problem, keeps) for keeps in Kept]
    region = next(one for one in regions if one.size == symmetric.num_bytes)
    synchronize()
    for placement in region:
        if placement.field.name in ("arrivals", "finished"):
            region.view(symmetric.sym, placement.field.name).zero_()
    synchronize()


def asks_for_other_tables(config: EpConfig, ep: EpMoE) -> TypeGuard[DispatchGemmConfig]:
    """Whether this is a variant of dispatch that reads other routing tables than the layer's."""
    own = ep.dispatch_config
    saves, sorts = own.token_saving, own.token_sorting
    return isinstance(config, DispatchGemmConfig) and (config.token_saving, config.token_sorting) != (saves, sorts)


def rows_of(ep: EpMoE) -> dict[str, int]:
    """From the current routing tables: rows that this rank fetches from other ranks, and (token, expert) pairs that it receives."""
    fetched = ep.memory.view("recv_pairs").tolist()
    return {"fetched": sum(fetched) - fetched[ep.symmetric.rank], "pairs": int(ep.memory.view("expert_rows").sum())}


def alone(ep: EpMoE, inputs: Inputs, launches: int) -> Times:
    """Times dispatch without GEMM tiles: the number of rows of every expert is set to 0."""
    ep.route(inputs)
    ep.memory.view("expert_rows").zero_()
    return time_back_to_back({"dispatch": ep.launch_dispatch}, launches, VARIANT_REPEATS)["dispatch"]


TRACED = (Variant("dispatch trace=on"), Variant("combine trace=on"))


def trace_ep_point(point: Point, layer: Layer, store: ArtifactStore, watchdog_ns: int, out: Path) -> dict[str, Any]:
    """Traces both kernels; all ranks together.  Rank 0 records its own launches and writes a Perfetto file of each to `out`."""
    problem, weights, stamps = without_clamp(point.problem), layer.weights_for(point.recipe), {"trace": True}
    ep = EpMoE(problem, weights, activation=swiglu, store=store, watchdog_ns=watchdog_ns, dispatch=stamps, combine=stamps)
    y = torch.empty(point.tokens, problem.hidden, dtype=torch.bfloat16, device="cuda")
    ep.route(Inputs(*point.draw(SEED)))
    synchronize()
    for _ in range(LAUNCHES):
        ep.launch_dispatch()
    ep.activate(ep.memory.rows_in_use())
    synchronize()
    for _ in range(LAUNCHES):
        ep.launch_combine(y)
    ep.synchronize()
    record: dict[str, Any] = {"point": asdict(point), "traced": {}}
    if dist.get_rank() == 0:
        for half, config in (("dispatch", ep.dispatch_config), ("combine", ep.combine_config)):
            record["traced"][half] = traced(ep.memory.trace_of(config), out, f"{half} {point.name}")
    ep.symmetric.close()
    return record


@dataclass(frozen=True)
class EpRun(LayerRun):
    """A run of the two kernels; all points have one number of ranks and one recipe.  Raises `ProblemError`."""

    variants: tuple[Variant, ...] = ()  # timed beside the chosen kernels
    trace: bool = False  # trace instead of timing

    def __post_init__(self) -> None:
        ranks = {one.ranks for one in self.points}
        if len(ranks) != 1:
            raise ProblemError("ranks", sorted(ranks), "one number for all points")
        if len({one.recipe for one in self.points}) != 1:
            raise ProblemError("recipe", sorted({one.recipe for one in self.points}), "one for all points")
        super().__post_init__()

    @property
    def kernels(self) -> tuple[Variant, ...]:
        return TRACED if self.trace else (*map(Variant, HALVES), *self.variants)

    def configs(self, host: Host) -> list[Any]:
        return self.with_tables([one for point in self.points for one in self.configs_of(point, host)])

    @staticmethod
    def with_tables(configs: Sequence[EpConfig]) -> list[Any]:
        """The configurations and those of the kernels that make their routing tables."""
        return [*configs, *(RoutingTablesConfig.of(one) for one in configs if isinstance(one, DispatchGemmConfig))]

    def configs_of(self, point: Point, host: Host) -> Iterable[EpConfig]:
        return configs_of(point, host.target, self.kernels).values()

    @property
    def jobs(self) -> Sequence[Any]:
        return self.points

    def measure(self, job: Any, layers: CurrentLayer, store: ArtifactStore, host: Host) -> dict[str, Any]:
        layer = layers.of(job)
        if self.trace:
            return trace_ep_point(job, layer, store, self.watchdog_ns, self.out)
        return ep_point(job, layer, store, host.target, self.kernels, self.watchdog_ns)

    def row(self, record: dict[str, Any]) -> str:
        if "traced" in record:
            return "\n".join(trace_row({"name": f"{record['name']} {half}", **one}) for half, one in record["traced"].items())
        times = ", ".join(f"{name} {one['median']:.0f} us" for name, one in record["us"].items())
        differing = f"; NOT THE SAME BITS: {record['differing']}" if record["differing"] else ""
        return f"{record['name']}: {times}, dispatch alone {record['dispatch_alone_us']['median']:.0f} us{differing}"

    def compile(self, host: Host, jobs: int) -> int:
        """Compiles what the folder lacks; returns how many kernels that were.  Raises `ConfigError`, and as `compile_ahead`."""
        return compile_ahead(self.configs(host), ArtifactStore(self.artifacts), jobs, "artifacts")

    def run(self, host: Host) -> Results:
        """Compiles missing kernels if the DSL is installed, runs all points and prints a line for each; the record of a failed point has an
        `error`.  Raises `HostError` for too few GPUs, and `ProblemError` if `out` cannot be written."""
        self.check(host)
        if dsl_version() is not None:
            self.compile(host, len(os.sched_getaffinity(0)))
        found = Recorded(self.out, "ep_moe")
        run_ranks(self, self.points[0].ranks, {one.name: one for one in self.jobs}, found, host)
        return found.done()

    @staticmethod
    def right(record: dict[str, Any]) -> bool:
        return not ("error" in record or record.get("unequal", 0) or record.get("differing"))
