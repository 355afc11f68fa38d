"""Expert-parallel kernels and their variants beside one another (bench/ep.py), with a layer of the host: what is launched, timed and
recorded, where they write, and which of them are wrong.  No time is held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from halves.bits import SMALL
from halves.run import algorithm_bandwidth
from megamoe_dsl.bench import ep as bench
from megamoe_dsl.bench.ep import Variant, bind_variants, ep_point, swiglu
from megamoe_dsl.bench.point import Point
from megamoe_dsl.bench.timing import Times
from megamoe_dsl.kernels.moe.halves.config import HALVES, DispatchGemmConfig
from megamoe_dsl.kernels.moe.halves.layouts.symmetric import Kept, symmetric_buffer
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from megamoe_dsl.target import Target

TARGET = Target.typical("sm_90a")
WRONG, LAZY = "combine cluster=1", "combine task_tokens=2"
SAVING, SORTING = "dispatch token_saving=off", "dispatch token_sorting=off"
NAMES = (SAVING, SORTING, "dispatch block_wise=off", "combine scatter=off", WRONG, LAZY)


@dataclass
class HostKernel:
    """Writes a y of ones where it points; another one if it is wrong, none of the last row if it is lazy."""

    name: str
    y: torch.Tensor | None = None

    def launch(self) -> None:
        assert self.y is not None
        self.y[: len(self.y) - (self.name == LAZY)] = 2.0 if self.name == WRONG else 1.0


@dataclass
class HostLayer:
    """As much of an `EpMoE` as variants need."""

    dispatch_config: DispatchGemmConfig
    problem: Any = SMALL
    symmetric: Any = None
    bound: dict[str, HostKernel] = field(default_factory=dict)

    def bind(self, name: str) -> HostKernel:
        return self.bound.setdefault(name, HostKernel(name))

    def point_at(self, kernel: HostKernel, y: torch.Tensor) -> None:
        kernel.y = y

    def synchronize(self) -> None:
        pass


def test_they_write_where_the_caller_keeps_y_and_wrong_ones_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = {name: Variant(name).config(SMALL, TARGET) for name in NAMES}
    names = {id(config): name for name, config in configs.items()}
    chosen = Variant("dispatch").config(SMALL, TARGET)
    assert isinstance(chosen, DispatchGemmConfig)
    cleared: list[Any] = []
    monkeypatch.setattr(bench, "clear_counters", cleared.append)
    layer, y = HostLayer(chosen), torch.ones(4, 8)
    store = SimpleNamespace(load=lambda config, any_sources: names[id(config)] if any_sources else "of these sources alone")
    found, differing = bind_variants(layer, store, configs, y)  # type: ignore[arg-type]
    assert differing == [WRONG, LAZY]
    assert set(configs) - set(found) == {SAVING, SORTING}
    combines = [name for name in configs if name.startswith("combine")]
    assert len(cleared) == len(combines)
    assert all(layer.bound[name].y is y for name in combines)


def test_algorithm_bandwidth_is_that_of_all_pairs() -> None:
    """Those of 8192 tokens of Flash in docs/lab/halves.md, whether they crossed or not."""
    flash = PRESETS["flash"].problem(8192, recipe="fp8xfp8")
    assert round(algorithm_bandwidth(flash, {"pairs": 49342, "fetched": 32608}, 500.0)) == 404


def test_the_activation_rounds_once() -> None:
    """Gate first; half a unit of the last of 8 bits is what a result may be off."""
    rows = torch.randn(64, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    gate, up = rows.double()[:, :128], rows.double()[:, 128:]
    wanted = gate / (1 + torch.exp(-gate)) * up
    found = swiglu(rows)
    assert found.dtype == torch.bfloat16 and bool(((found.double() - wanted).abs() <= 1.001 * 2**-8 * wanted.abs() + 1e-30).all())


POINT = Point(None, 5, 2, hidden=512, intermediate=256, experts=8, topk=3)
KEPT = "combine interleaved=off"
FIELDS = ("x", "x_sf", "topk_idx", "topk_weights")


class TimedLayer(HostLayer):
    """In place of an `EpMoE` on rank 1: notes what is called."""

    noted: list[str]
    given: dict[str, Any]

    def __init__(self, problem: Problem, weights: Any, **given: Any) -> None:
        dispatch, combine = (Variant(f"{half} trace=on" if half in given else half) for half in HALVES)
        configs = [one.config(problem, TARGET) for one in (dispatch, combine)]
        super().__init__(configs[0], problem, given.get("symmetric") or SimpleNamespace(rank=1, close=lambda: self.noted.append("close")))  # type: ignore[arg-type]
        self.combine_config, self.rows, self.weights = configs[1], torch.zeros(40, 512), weights
        type(self).given = given
        self.tables = {"recv_pairs": torch.tensor([3, 4]), "expert_rows": torch.tensor([5, 0, 1, 1])}
        self.memory = SimpleNamespace(view=self.tables.get, rows_in_use=lambda: 384, trace_of=lambda config: config)

    def __call__(self, x: Any, topk_idx: Any, topk_weights: Any, *, x_sf: Any, out: torch.Tensor) -> None:
        self.noted.append(f"call {x} {topk_idx} {topk_weights} {x_sf}")
        out.fill_(1.0)

    def synchronize(self) -> None:
        self.noted.append("synchronize")

    def route(self, inputs: Any, config: DispatchGemmConfig | None = None) -> None:
        saves = self.dispatch_config if config is None else config
        self.noted.append(f"route {inputs.x} {'with' if saves.token_saving else 'without'} saving")

    def launch_dispatch(self) -> None:
        self.noted.append(f"dispatch of {int(self.tables['expert_rows'].sum())}")

    def activate(self, count: int) -> None:
        self.noted.append(f"activate {count}")

    def launch_combine(self, y: torch.Tensor) -> None:
        self.noted.append(f"combine {tuple(y.shape)}")


class TinyPoint(Point):
    """A point whose tokens have names."""

    def draw(self, seed: int) -> Any:
        return [f"{name}{seed}" for name in ("x", "x_sf", "idx", "weights")]


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is called, in place of a GPU."""
    found: list[str] = []
    TimedLayer.noted = found
    monkeypatch.setattr(bench, "EpMoE", TimedLayer)
    monkeypatch.setattr(bench, "Inputs", lambda *names: SimpleNamespace(**dict(zip(FIELDS, names, strict=True))))
    monkeypatch.setattr(bench, "synchronize", lambda: found.append("all"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.append("empty"))
    return found


def layer_of(problem: Problem) -> Any:
    return SimpleNamespace(weights_for=lambda recipe: f"weights of {recipe}")


@pytest.mark.parametrize(("tokens", "launches"), [(5, 20), (8192, 8), (8193, 3)])
def test_a_point_of_halves(tokens: int, launches: int, noted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In one turn kernels, variants and others, then those that ask for other tables, the activation, and dispatch of no rows."""
    point = TinyPoint(**{**asdict(POINT), "tokens": tokens})
    problem = replace(point.problem, activation_clamp=None)
    variants = [Variant(name) for name in ("dispatch", "combine", WRONG, SAVING, KEPT)]
    allocated: list[Any] = []
    turns: list[tuple[list[str], int, int]] = []

    def allocate(given: Problem, region: Any) -> Any:
        allocated.append((given, region))
        return SimpleNamespace(num_bytes=77, rank=1, close=lambda: noted.append("close"))

    def time(candidates: dict[str, Callable[[], Any]], launches: int, repeats: int = 7) -> dict[str, Times]:
        turns.append((list(candidates), launches, repeats))
        for one in candidates.values():
            one()
        return {name: Times(float(len(name)), 1.0, 99.0) for name in candidates}

    monkeypatch.setattr(bench, "SymmetricBuffer", SimpleNamespace(allocate=allocate))
    monkeypatch.setattr(bench, "time_back_to_back", time)
    monkeypatch.setattr(bench, "clear_counters", lambda symmetric: noted.append("clear"))
    monkeypatch.setattr(bench, "tuned_fields", lambda half, *given: {"of": [half, *given[1:]]} if given[0] == problem else {})
    monkeypatch.setattr(TimedLayer, "bind", lambda self, name: SimpleNamespace(launch=lambda: noted.append(f"launch {name}")))
    monkeypatch.setattr(TimedLayer, "point_at", lambda self, kernel, y: noted.append(f"point at {tuple(y.shape)}"))
    monkeypatch.setattr(bench, "swiglu", lambda rows: noted.append(f"swiglu of {len(rows)}"))
    names = {one.config(problem, TARGET): one.name for one in variants}
    store: Any = SimpleNamespace(load=lambda config, any_sources: names[config])
    others = lambda inputs, y: {"theirs": lambda: noted.append(f"theirs {inputs.x} {tuple(y.shape)}")}  # noqa: E731
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, device, **given: empty(*shape, **given))
    record = ep_point(point, layer_of(problem), store, TARGET, variants, 7, others)
    ((given, region),) = allocated
    assert given == problem and region == symmetric_buffer(problem, Kept.RESULTS), "what one of the variants needs"
    assert TimedLayer.given["watchdog_ns"] == 7 and TimedLayer.given["store"] is store and TimedLayer.given["symmetric"].num_bytes == 77
    own = ["dispatch", "combine", WRONG, KEPT]
    assert turns == [(["theirs", *own], launches, 5), ([SAVING], launches, 5), (["activation"], launches, 7), (["dispatch"], launches, 5)]
    shape = (tokens, 512)
    checked = [one for name in ("combine", WRONG, KEPT) for one in (f"point at {shape}", f"launch {name}", "synchronize", "clear")]
    assert noted == [
        *("call x1 idx1 weights1 x_sf1", "synchronize", "empty", *checked),
        *(f"theirs x1 {shape}", *(f"launch {name}" for name in own)),
        *("route x1 without saving", f"launch {SAVING}", "swiglu of 7", "route x1 with saving", "dispatch of 0", "close"),
    ]
    assert record["differing"] == ["combine", WRONG, KEPT], "nobody wrote y here"
    assert record["us"] == {name: {"median": len(name), "low": 1.0, "high": 99.0} for name in ("theirs", *own, SAVING)}
    assert (record["point"], record["rows"], record["symmetric_bytes"]) == (asdict(point), {"fetched": 3, "pairs": 7}, 77)
    assert record["tuned"] == {half: {"of": [half, tokens, TARGET.gpu]} for half in ("dispatch", "combine")}
    assert (record["activation_us"]["median"], record["dispatch_alone_us"]["median"]) == (10.0, 8.0)


def test_tables_of_another_recipe_are_left(noted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatch that asks for other tables may be of another layer that takes turns with this one."""
    fp8, bf16 = (replace(SMALL, recipe=recipe) for recipe in ("fp8xfp8", "bf16xbf16"))
    monkeypatch.setattr(bench, "time_back_to_back", lambda candidates, *given: dict.fromkeys(candidates, given))
    configs = {"8 bits": Variant(SAVING).config(fp8, TARGET), "usual": Variant("dispatch").config(bf16, TARGET)}
    configs |= {"16 bits": Variant(SAVING).config(bf16, TARGET), "results": Variant("combine").config(bf16, TARGET)}
    store: Any = SimpleNamespace(load=lambda config, any_sources: "kernel")
    layer: Any = TimedLayer(bf16, None)
    assert bench.time_other_tables(layer, store, configs, SimpleNamespace(x="x"), 9) == {"16 bits": (9, 5)}  # type: ignore[arg-type]
    assert noted == ["route x without saving"]


@pytest.mark.parametrize("keeps", Kept)
def test_counters_that_another_kernel_would_find_are_cleared(keeps: Kept, noted: list[str]) -> None:
    """Of arrivals and of parts that are done, where there are any; while all ranks wait."""
    problem = replace(SMALL, num_ranks=1, num_experts=4)
    region = symmetric_buffer(problem, keeps)
    symmetric = SymmetricBuffer.allocate(problem, device="cpu", region=region)
    symmetric.sym.fill_(1)
    bench.clear_counters(symmetric)
    cleared = {one.field.name for one in region if not region.view(symmetric.sym, one.field.name).view(torch.uint8).any()}
    assert cleared == ({"arrivals", "finished"} if keeps == Kept.RESULTS else {"arrivals"}) and noted == ["all", "all"]
    others = [region.view(symmetric.sym, one.field.name).view(torch.uint8) for one in region if one.field.name not in cleared]
    assert all(bool((one == 1).all()) for one in others)


@pytest.mark.parametrize("rank", [0, 1])
def test_both_halves_are_traced(rank: int, noted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight launches of each, on the same tokens; rank 0 says what its warps did."""
    point = TinyPoint(**asdict(POINT))
    traced: list[Any] = []
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(bench, "traced", lambda stamps, out, name: traced.append((stamps, out)) or name)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, device, **given: empty(*shape, **given))
    record = bench.trace_ep_point(point, layer_of(point.problem), "store", 7, tmp_path)  # type: ignore[arg-type]
    launches = [*("dispatch of 7",) * 8, "activate 384", "all", *(f"combine {(5, 512)}",) * 8]
    assert noted == ["route x1 with saving", "all", *launches, "synchronize", "close"]
    given = {name: one for name, one in TimedLayer.given.items() if name != "activation"}
    assert given == {"store": "store", "watchdog_ns": 7, "dispatch": {"trace": True}, "combine": {"trace": True}}
    names = {half: f"{half} H512 I256 E8 top3 EP2 M=5" for half in ("dispatch", "combine")}
    assert record == {"point": asdict(point), "traced": {} if rank else names}
    configs = [Variant(f"{half} trace=on").config(replace(point.problem, activation_clamp=None), TARGET) for half in names]
    assert traced == ([] if rank else [(one, tmp_path) for one in configs])
