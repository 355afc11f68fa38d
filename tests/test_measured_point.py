"""A point of layers as one rank times and traces it: the reference in place of kernels, tensors on the host.  No time is held."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from baselines import layer as layer_module
from baselines.layer import Beside
from megamoe_dsl import Target, choose
from megamoe_dsl.bench import point as point_module
from megamoe_dsl.bench import session as session_module
from megamoe_dsl.bench import timing
from megamoe_dsl.bench.point import SEED, Layer, Point, check_launch, measure_point
from megamoe_dsl.bench.session import LAUNCHES, Session, trace_point
from megamoe_dsl.bench.timing import Times
from megamoe_dsl.bench.variant import variant_name
from megamoe_dsl.cases import TokenInputs, random_inputs, random_weights
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.layouts.records import Activity, Role
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant.expansion import fp8_weights
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.rank_kernel import ReferenceKernel
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer

POINT = Point(None, 5, 1, hidden=256, intermediate=128, experts=4, topk=2)
CHOSEN = choose(POINT.problem, Target.typical("sm_90a", 2), 5)
OTHER = CHOSEN.replace(num_stages=CHOSEN.num_stages - 1)
CHOSEN_NAME, OTHER_NAME = variant_name(CHOSEN), variant_name(OTHER)
WATCHDOG_NS = 77
MADE_BY = {"sources": "01234567", "dsl": "4"}


class OnTheHost(TorchFunctionMode):
    """What is asked for on a GPU is made on the host."""

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return function(*args, **{name: "cpu" if name == "device" else one for name, one in (kwargs or {}).items()})


class Kernel(ReferenceKernel):
    """`noted` tells of launches; that of a configuration is `wrong` by an element."""

    noted: list[str]
    wrong: MegaMoeConfig | None = None

    def __init__(self, artifact: Any, symmetric: SymmetricBuffer, weights: Any, watchdog_ns: int) -> None:
        assert watchdog_ns == WATCHDOG_NS
        super().__init__(artifact.config, symmetric, weights)

    def __call__(self, y: torch.Tensor) -> None:
        super().__call__(y)
        self.noted.append(f"launch {self.config.num_stages}")
        y[-1, -1] += 9 * (self.config == self.wrong)

    def synchronize(self) -> None:
        self.noted.append("synchronize")


class Baseline:
    """Another project's layer: y is 1 everywhere."""

    version, num_bytes = "1.2", 999

    def __init__(self, noted: list[str]) -> None:
        self.noted = noted

    def allocate(self, problem: Problem) -> None:
        self.noted.append(f"allocate {problem.max_tokens_per_rank}")

    def load(self, inputs: TokenInputs) -> None:
        self.noted.append(f"load {seeds()[inputs.x.view(torch.uint8).numpy().tobytes()]}")

    def __call__(self, y: torch.Tensor) -> None:
        self.noted.append("baseline")
        y.fill_(1.0)

    def free(self) -> None:
        self.noted.append("free")


@cache
def seeds() -> dict[bytes, int]:
    """By the bytes of x."""
    drawn = {seed: random_inputs(POINT.problem, 0, 5, seed).x for seed in (SEED, 1001)}
    return {x.view(torch.uint8).numpy().tobytes(): seed for seed, x in drawn.items()}


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """This rank is the only one; what happens on it."""
    found: list[str] = []
    allocate, close, load = SymmetricBuffer.allocate, SymmetricBuffer.close, point_module.RankBuffers.load

    def close_it(self: SymmetricBuffer) -> None:
        found.append("close")
        close(self)

    def load_it(self: Any, inputs: Inputs) -> None:
        found.append(f"load {seeds()[inputs.x.view(torch.uint8).numpy().tobytes()]}")
        load(self, inputs)

    def on_the_host(draw: Callable[..., Any]) -> Callable[..., Any]:
        def drawn(problem: Problem, rank: int, *given: Any, **options: Any) -> Any:
            assert given[-1] == "cuda"
            return draw(problem, rank, *given[:-1], **options)

        return drawn

    Kernel.noted, Kernel.wrong = found, None
    of_group = {
        "get_rank": lambda: 0,
        "get_world_size": lambda: 1,
        "all_gather_object": lambda everyone, own: everyone.__setitem__(0, own),
        "all_reduce": lambda tensor: None,
    }
    for name, one in of_group.items():
        monkeypatch.setattr(dist, name, one)
    monkeypatch.setattr(SymmetricBuffer, "allocate", partial(allocate, device="cpu"))
    monkeypatch.setattr(SymmetricBuffer, "close", close_it)
    monkeypatch.setattr(point_module.RankBuffers, "load", load_it)
    monkeypatch.setattr(point_module, "RankKernel", Kernel)
    monkeypatch.setattr(point_module, "random_inputs", on_the_host(random_inputs))
    monkeypatch.setattr(point_module, "random_weights", on_the_host(random_weights))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    for module in (point_module, session_module, layer_module, timing):
        monkeypatch.setattr(module, "synchronize", lambda: found.append("all"))
    return found


@pytest.fixture
def timed(noted: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As `noted`, with times in the place of clocks: the other kernel is the fastest, the baseline the slowest; one earlier batch."""

    def times(factor: float) -> Callable[..., dict[str, Times]]:
        def of(candidates: dict[str, Any], *launches: int) -> dict[str, Times]:
            noted.append(f"time {' '.join(map(str, launches))}")
            us = {CHOSEN_NAME: 20.0, OTHER_NAME: 10.0, "baseline": 50.0}
            return {name: Times(factor * us[name], 1.0, 99.0) for name in candidates}

        return of

    monkeypatch.setattr(point_module, "time_back_to_back", times(1.0))
    monkeypatch.setattr(point_module, "time_graphs", times(0.5))
    for module in (point_module, layer_module):
        monkeypatch.setattr(module, "run_earlier_batches", partial(timing.run_earlier_batches, batches=1))
    return noted


def store() -> Any:
    def load(config: MegaMoeConfig, any_sources: bool) -> Any:
        assert any_sources
        return SimpleNamespace(config=config)

    return SimpleNamespace(load=load, origin=lambda config: {**MADE_BY, "of": config.num_stages})


def measure(configs: list[MegaMoeConfig], graphs: bool, others: Any = None) -> dict[str, Any]:
    with OnTheHost():
        return measure_point(POINT, Layer(POINT.problem), store(), configs, WATCHDOG_NS, graphs, others)


def test_a_point_is_checked_and_timed_beside_a_baseline(timed: list[str]) -> None:
    """Both kernels are right; all take turns on the same tokens, after other ones."""
    beside = Beside(POINT, Baseline(timed))  # type: ignore[arg-type]
    record = measure([CHOSEN, OTHER], True, beside.launches)
    beside.enter(record)
    first, second = f"launch {CHOSEN.num_stages}", f"launch {OTHER.num_stages}"
    assert timed == [
        *("all", "load 1001", first, second, "load 1"),
        *("all", first, "synchronize", "all", second, "synchronize"),
        *("allocate 5", "all", "load 1001", "baseline", "load 1", "baseline", "all"),
        *[first, second, "baseline"] * 3,
        *("time 20", "time ", "synchronize", "synchronize", "close", "free"),
    ]
    assert json.loads(json.dumps(record)) == record
    assert (record["point"], record["name"], record["num_sms"]) == (asdict(POINT), POINT.name, 2)
    values, scales = 4 * 3 * 256 * 128, 4 * (2 * 1 * 2 + 1 * 2 * 1)  # one FP32 scale for 128 x 128
    assert (record["weight_bytes"], record["symmetric_bytes"], record["earlier_batches"]) == (values + 4 * scales, CHOSEN.symmetric.size, 8)
    assert list(record["variants"]) == [CHOSEN_NAME, OTHER_NAME]
    for config, us in ((CHOSEN, 20.0), (OTHER, 10.0)):
        one = record["variants"][variant_name(config)]
        assert one["made_by"] == {**MADE_BY, "of": config.num_stages}
        assert one["us"] == {"median": us, "low": 1.0, "high": 99.0} and one["graph_us"]["median"] == us / 2
        assert one["check"]["passed"] and (one["check"]["elements"], one["check"]["same_bits"]) == (4 * 256, 1.0)
        assert one["difference_to_baseline"] == pytest.approx(0.93, abs=0.2)
    assert (record["baseline"]["version"], record["baseline"]["symmetric_bytes"], record["baseline"]["us"]["median"]) == ("1.2", 999, 50.0)
    assert (record["slowest_rank"]["received"], record["slowest_rank"]["remote"]) == (5 * 2, 0.0), "of one launch"
    best = record["best"]
    assert (best["variant"], best["us"], best["ratio"], best["graph_ratio"]) == (OTHER_NAME, 10.0, 5.0, 5.0)


def test_a_point_alone_without_graphs(timed: list[str]) -> None:
    """A wrong kernel is not the best one."""
    Kernel.wrong = OTHER
    record = measure([CHOSEN, OTHER], False)
    assert "baseline" not in record and "time " not in timed
    assert [one["graph_us"] for one in record["variants"].values()] == [None, None]
    assert [one["check"]["violations"] for one in record["variants"].values()] == [0, 1]
    assert record["best"]["variant"] == CHOSEN_NAME and record["best"]["graph_us"] is None


def test_what_a_launch_leaves_out_is_wrong(noted: list[str]) -> None:
    """Of y as the launch before has left it."""
    checked: list[torch.Tensor] = []
    expectation: Any = SimpleNamespace(check=lambda y: checked.append(y.clone()))
    kernel: Any = lambda y: y[0].fill_(2.0)  # noqa: E731
    kernel.synchronize = lambda: noted.append("synchronize")
    y = torch.ones(2, 3)
    assert check_launch(kernel, y, expectation) is None and noted == ["synchronize"], "ranks other than 0 say nothing"
    assert checked[0][0].tolist() == [2.0] * 3 and bool(checked[0][1].isnan().all())


def test_kernels_of_a_layer_share_its_weights(noted: list[str]) -> None:
    """Those of FP8 beside 4 bits have copies of their own, expanded; both outlive a point's buffer."""
    point = replace(POINT, recipe="fp8xmxfp4")
    target = Target.typical("sm_90a", 2)
    own = choose(point.problem, target, 5)
    layer = Layer(point.problem)
    fp8 = choose(replace(point.problem, recipe="fp8xfp8"), target, 5)
    kernels = []
    for _ in range(2):
        for config in (own, fp8):
            symmetric = SymmetricBuffer.allocate(config.problem, config.arch)
            kernels.append(layer.bind(store(), config, symmetric, WATCHDOG_NS))
            assert kernels[-1].buffers.sym is symmetric.sym
    addresses = [one.buffers.weights.fc1.data_ptr() for one in kernels]
    assert addresses[0] == addresses[2] != addresses[1] == addresses[3]
    wanted = random_weights(point.problem, 0, SEED)
    assert torch.equal(layer.weights_for("fp8xmxfp4").fc1, wanted.fc1)
    assert torch.equal(layer.weights_for("fp8xfp8").fc2.view(torch.uint8), fp8_weights(wanted).fc2.view(torch.uint8))
    assert torch.equal(kernels[3].buffers.checkpoint_weights().fc1.view(torch.uint8), fp8_weights(wanted).fc1.view(torch.uint8))
    assert all(one.sym.numel() == 0 for one in layer.shared.values()) and layer.shared.keys() == {"fp8xmxfp4", "fp8xfp8"}


def test_rank_0_alone_has_the_weights_of_all(noted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = replace(POINT.problem, num_experts=12, num_ranks=3)
    found = Layer(problem).all_weights
    assert found is not None and len(found) == 3
    for rank, one in enumerate(found):
        assert torch.equal(one.fc1.view(torch.uint8), random_weights(problem, rank, SEED).fc1.view(torch.uint8))
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    other = Layer(problem)
    assert other.all_weights is None and torch.equal(other.weights.fc1.view(torch.uint8), found[2].fc1.view(torch.uint8))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_point_is_traced(rank: int, noted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of eight launches, of the first kernel; rank 0 says what its warps did."""
    config = CHOSEN.replace(trace=True)
    session = Session([POINT], tmp_path, tmp_path, watchdog_ms=1)
    monkeypatch.setattr(Session, "watchdog_ns", WATCHDOG_NS)
    monkeypatch.setattr(session_module, "run_earlier_batches", partial(timing.run_earlier_batches, batches=1))
    monkeypatch.setattr(session_module, "dist", SimpleNamespace(get_rank=lambda: rank))
    launched = f"launch {config.num_stages}"

    def stamp(self: Kernel, y: torch.Tensor) -> None:
        noted.append(f"launch {self.config.num_stages}")
        number = noted.count(launched)
        words = [(1000, Role.MATH << 32 | Activity.START), (1000 + 500 * number, 4 << 32 | Activity.MULTIPLY)]
        self.buffers.trace[0, 0, :2] = torch.tensor(words)

    monkeypatch.setattr(Kernel, "__call__", stamp)
    with OnTheHost():
        record = trace_point(session, POINT, Layer(POINT.problem), store(), [config, OTHER])
    assert noted == ["all", "load 1001", launched, "load 1", "all", *[launched] * LAUNCHES, "synchronize", "close"]
    files = [one.name for one in tmp_path.iterdir()]
    assert record["point"] == asdict(POINT) and record["made_by"] == {**MADE_BY, "of": config.num_stages}
    if rank:
        assert files == [] and record.keys() == {"point", "made_by"}
        return
    assert files == ["trace-H256-I128-E4-top2-EP1-M5.json"] and record["launch_us"] == 4.5
    assert record["trace"]["math"]["multiply Linear1"]["us"] == 4.5


def test_a_launch_without_stamps_took_no_time(tmp_path: Path) -> None:
    found = session_module.traced(torch.zeros(1, 1, 4, 2, dtype=torch.int64), tmp_path, "flash EP8 M=8")
    assert found == {"trace": {}, "launch_us": 0.0} and (tmp_path / "trace-flash-EP8-M8.json").exists()
