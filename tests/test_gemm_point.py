"""A point of GEMMs on the CPU: its operands, the check of what kernels make of them, the record, and its text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gemms import baselines
from gemms.baselines import Beside, Others, RunBeside, beside_table
from gemms.points import all_points, decoded_points, dense, grouped, unscaled_points
from megamoe_dsl import GemmConfig, choose
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.gemm import session
from megamoe_dsl.bench.gemm.point import GemmPoint, candidates, estimate, within_reach
from megamoe_dsl.bench.gemm.session import TOLERANCE, PointInputs, checked, in_rotation, run_point, table
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.timing import Times
from megamoe_dsl.blocks.gemm.problem import CONTIGUOUS, MASKED, PACKED
from megamoe_dsl.quant import dequantize
from megamoe_dsl.runtime.gemm_tensors import GemmTensors
from megamoe_dsl.target import Target

POINTS = {
    "dense": dense(130, 256, 384),
    PACKED: grouped(PACKED, [3, 0, 42], 256, 128),
    CONTIGUOUS: grouped(CONTIGUOUS, [3, 0, 129], 256, 128),
    MASKED: grouped(MASKED, [3, 0, 42], 256, 128),
    "bf16": GemmPoint(replace(dense(130, 256, 384).problem, recipe="bf16xbf16"), (130,)),
    "masked bf16": GemmPoint(replace(grouped(MASKED, [3, 0, 42], 256, 128).problem, recipe="bf16xbf16"), (3, 0, 42)),
}
PAGE = Path(__file__).parents[1] / "docs" / "lab" / "gemms.md"
MICROSECONDS = 2.0, 1.0, 4.0  # of the right kernel, the wrong one, and another project's


def group_of_rows(kind: str, t: GemmTensors) -> list[int]:
    """-1 of rows that no group has, as a kernel reads `groups`."""
    if t.groups is None:
        return [0] * len(t.a)
    groups = t.groups.tolist()
    if kind == MASKED:
        return [group if row < count else -1 for group, count in enumerate(groups) for row in range(t.a.shape[1])]
    if kind == CONTIGUOUS:
        return [group for group in groups for _ in range(128)]
    return [next((group for group, end in enumerate(groups) if row < end), -1) for row in range(len(t.a))]


def multiply(t: GemmTensors, kind: str, factor: float) -> None:
    """D of every group's rows, too large by a factor."""
    a = dequantize(t.a.flatten(0, -2), t.a_sf.contiguous().flatten(0, -2))
    b, b_sf = (one if t.groups is not None else one[None] for one in (t.b, t.b_sf))
    of_groups = [dequantize(*one) for one in zip(b, b_sf, strict=True)]
    for row, group in enumerate(group_of_rows(kind, t)):
        if group >= 0:
            t.d.flatten(0, -2)[row] = factor * (of_groups[group] @ a[row])


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Launches of a kernel that is right and of one that is not, and clocks; what was asked of the clocks."""
    asked = dict[str, Any]()
    draw = PointInputs.draw

    def loaded(configs: Any, store: Any, tensors: GemmTensors) -> dict[str, Callable[[], None]]:
        kind = configs[0].problem.kind
        return {session.variant(one): partial(multiply, tensors, kind, factor) for one, factor in zip(configs, (1.0, 1.01), strict=True)}

    def time(launches: dict[str, Any], *given: int) -> dict[str, Times]:
        asked["launches"] = given
        return {name: Times(us, 1.0, 9.0) for name, us in zip(launches, MICROSECONDS, strict=False)}

    monkeypatch.setattr(session.PointInputs, "draw", lambda point: draw(point, "cpu"))
    monkeypatch.setattr(session, "loaded", loaded)
    monkeypatch.setattr(session, "time_graphs", lambda launches: time(launches))
    monkeypatch.setattr(session, "time_back_to_back", time)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return asked


@pytest.mark.parametrize("name", POINTS)
def test_what_is_wrong_by_a_hundredth_does_not_pass(name: str, timed: dict[str, Any]) -> None:
    """Of BF16 results, which are wrong by a few thousandths."""
    point, alone = POINTS[name], name == "bf16"
    config = choose(point.problem, Target.typical("sm_90a"), point.placed_rows)
    other: Any = None if alone else lambda _: {"theirs": lambda: None}
    record = run_point(point, [config, config.replace(group_m=3)], ArtifactStore("none"), 5, other)
    wrong, right, *theirs = record["kernels"]  # the fastest first
    assert [one["kernel"] for one in theirs] == ([] if alone else ["theirs"])
    assert (wrong["check"]["passed"], right["check"]["passed"]) == (False, True)
    assert wrong["check"]["error"] == pytest.approx(0.01, rel=0.3) and right["check"]["error"] < 3e-3
    assert wrong["config"]["group_m"] == 3 and right["config"]["group_m"] == config.group_m
    assert right["tflops"] == 2 * sum(point.counts) * point.problem.n * point.problem.k / 2e-6 / 1e12
    assert timed["launches"] == (50, 5)
    text = table({**record, "name": "a point"})
    assert text.startswith("a point: 0 MB") and "WRONG 1." in text and " ok " in text
    assert ("TFLOPS" in text.splitlines()[-1] and text.endswith(" theirs")) == (not alone)


def test_a_point_counts_what_it_moves() -> None:
    """B of a group without rows stays in memory."""
    point = POINTS[PACKED]
    assert point.flop == 2.0 * 45 * 256 * 128
    assert point.num_bytes == pytest.approx(45 * (128 + 128 / 128 * 4) + 2 * 256 * 128 + 43 * 256 * 2, rel=0.01)
    alone = grouped(PACKED, [1, 0], 256, 128)
    assert alone.num_bytes == pytest.approx(128 + 4 + 256 * 128 + 2 * 4 + 256 * 2, rel=0.01)
    point = POINTS["dense"]
    kept, added = (replace(point, problem=replace(point.problem, output="f32", accumulate=also)) for also in (False, True))
    assert added.num_bytes - kept.num_bytes == 130 * 256 * 4, "D is read, too"


def test_weights_beyond_l2_take_turns() -> None:
    tensors: Any = SimpleNamespace(b=torch.empty(50_000_001, dtype=torch.uint8, device="meta"))
    assert session.copies_of(tensors) == 3
    tensors.b = torch.empty(1, device="meta")
    assert session.copies_of(tensors) == 10  # as many as a graph has launches
    called = list[str]()
    turns = in_rotation([{"one": partial(called.append, f"one {turn}"), "two": partial(called.append, f"two {turn}")} for turn in range(2)])
    for name in ("one", "one", "two", "one"):
        turns[name]()
    assert called == ["one 0", "one 1", "two 0", "one 0"]
    own = PointInputs(GemmTensors(*(torch.zeros(1) for _ in range(5))), ())
    copies = own.copies(3)
    assert (
        copies[0] is own
        and len({one.tensors.b.data_ptr() for one in copies}) == 3
        and len({one.tensors.a.data_ptr() for one in copies}) == 1
    )


def on_the_page(heading: str) -> list[str]:
    """Names of the points of the first table under a heading."""
    (section,) = [one for one in PAGE.read_text().split("\n## ") if one.startswith(f"{heading}\n")]
    return re.findall(r"^\| ((?:dense|contiguous|packed|masked) \d\S+)", section, re.MULTILINE)


def test_points_are_those_of_the_page() -> None:
    """Of weights of 4 bits the page has a few; all are measured with more numbers of rows."""
    assert [one.name for one in all_points()] == on_the_page("How fast it is")
    assert [one.name for one in unscaled_points()] == [f"{name} bf16xbf16" for name in on_the_page("BF16")]
    shapes = ["7168x2048", "24576x1536", "32768x512", "7168x16384", "4096x7168", "2112x7168"]
    groups = [f"{kind} {one}x4096x4096" for one in ("256x64", "32x16", "32x384") for kind in ("masked", "packed")]
    names = [*(f"dense {m}x{one}" for m in (4096, 512, 128, 64, 32, 8) for one in shapes), *groups]
    assert [one.name for one in decoded_points()] == [f"{name} fp8xmxfp4" for name in names]
    assert set(on_the_page("Weights of 4 bits")) <= set(names)


def test_a_point_is_named_by_its_rows() -> None:
    names = ("dense 130x256x384", "packed 3xskewedx256x128", "contiguous 3xskewedx256x128", "masked 3xskewedx256x128")
    assert tuple(one.name for one in POINTS.values())[:4] == names
    assert (POINTS["bf16"].name, POINTS["masked bf16"].name) == ("dense 130x256x384 bf16xbf16", f"{names[3]} bf16xbf16")
    assert [grouped(PACKED, [7] * count, 256, 128).name for count in (1, 2)] == ["packed 1x7x256x128", "packed 2x7x256x128"]


def test_operands_of_a_point_are_the_same_again() -> None:
    """Weights of later groups are larger, up to three times; scales of A lie by column; D is checked in some groups and rows of each."""
    point = grouped(PACKED, [0, *[40] * 15], 128, 256)
    first, again = (PointInputs.draw(point, "cpu") for _ in range(2))
    for name in ("a", "a_sf", "b", "b_sf", "groups"):
        one, other = (getattr(found.tensors, name).float() for found in (first, again))
        assert torch.equal(one, other), name
    sizes = [float(dequantize(*one).std()) for one in zip(first.tensors.b, first.tensors.b_sf, strict=True)]
    assert [size / sizes[0] for size in sizes] == pytest.approx([1 + group / 8 for group in range(16)], rel=0.05)
    assert first.tensors.a_sf.stride() == (1, 600) and first.tensors.a_sf.shape == (600, 2)
    assert [len(rows) for rows, _ in first.samples] == [32] * 8  # every other group that has rows
    assert [int(rows[0]) // 40 for rows, _ in first.samples] == list(range(0, 15, 2))
    for rows, wanted in first.samples:
        a = dequantize(first.tensors.a.view(torch.uint8)[rows].view(torch.float8_e4m3fn), first.tensors.a_sf[rows].contiguous())
        group = int(rows[0]) // 40 + 1
        assert torch.equal(wanted, a @ dequantize(first.tensors.b[group], first.tensors.b_sf[group]).T)
        assert len(set(rows.tolist())) == 32 and wanted.dtype == torch.float64


def test_the_worst_group_is_what_an_error_is_of() -> None:
    wanted = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    samples = tuple((torch.tensor([row]), wanted) for row in (2, 0, 3))
    d = torch.tensor([[3.0, 3.0], [9.0, 9.0], [3.0, 4.0], [3.5, 4.0]])
    inputs = PointInputs(GemmTensors(*(torch.zeros(1) for _ in range(5))), samples)
    assert inputs.error(d) == inputs.error(d.view(2, 2, 2)) == pytest.approx(0.2)
    for row in range(3):
        unwritten = d.clone()
        unwritten[(2, 0, 3)[row], 1] = torch.nan
        assert not inputs.error(unwritten) <= TOLERANCE, "in whichever group it is"


def test_what_a_kernel_leaves_out_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """In D there is what the kernel before has written."""
    point = grouped(PACKED, [5, 5], 256, 128)
    inputs, waited = PointInputs.draw(point, "cpu"), list[str]()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append("once"))

    def lazy() -> None:
        whole, inputs.tensors.d[5:] = inputs.tensors.d.clone(), 0.0
        multiply(inputs.tensors, PACKED, 1.0)
        inputs.tensors.d[5:] = whole[5:]

    errors = checked({"right": partial(multiply, inputs.tensors, PACKED, 1.0), "lazy": lazy}, inputs)
    assert errors["right"] < TOLERANCE and not errors["lazy"] <= TOLERANCE and waited == ["once"] * 2


@pytest.mark.parametrize(("us", "launches"), [(10.0, 50), (400.0, 20), (2666.0, 3), (8000.0, 3)])
def test_a_turn_takes_eight_milliseconds(us: float, launches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the slowest kernel; at least three launches, at most fifty.  Others are of the same inputs."""
    point, drawn, asked = POINTS["dense"], PointInputs.draw(POINTS["dense"], "cpu"), list[Any]()
    monkeypatch.setattr(session.PointInputs, "draw", lambda point: drawn)
    monkeypatch.setattr(session, "loaded", lambda *_: {"ours": lambda: None})
    monkeypatch.setattr(session, "time_graphs", lambda launches: {"ours": Times(1.0, 1.0, 1.0), "theirs": Times(us, us, us)})
    alike = Times(1.0, 1.0, 1.0)
    monkeypatch.setattr(session, "time_back_to_back", lambda kernels, *given: asked.append(given) or dict.fromkeys(kernels, alike))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    others = lambda inputs: asked.append(inputs) or {"theirs": lambda: None}  # noqa: E731
    ours, theirs = run_point(point, [], ArtifactStore("none"), 5, others)["kernels"]
    assert asked == [drawn, (launches, 5)]
    assert (ours["config"], theirs["config"], theirs["check"]) == (None, None, None)


def test_ratios_are_to_the_fastest_other_kernel() -> None:
    """Back to back and as a graph, which may be another one."""
    kernels = [
        {"kernel": name, "config": config, "check": check, "us": {"median": us}, "graph_us": {"median": graph}, "tflops": 7.4}
        for name, config, check, us, graph in (
            ("theirs", None, None, 8.0, 6.0),
            ("ours", {}, {"passed": True, "error": 0.00123}, 10.0, 2.5),
            ("torch", None, {"passed": False, "error": 0.5}, 20.0, 5.0),
        )
    ]
    record = {"name": "a point", "bytes": 2.6e6, "kernels": kernels, "refused": {"wheel": "no such shape"}}
    ours = "       10.0       2.5 us      7 TFLOPS  ok 1.23e-03     ours"
    assert beside_table(record).splitlines() == [
        "a point: 3 MB",
        "        8.0       6.0 us      7 TFLOPS                  theirs",
        ours,
        "       20.0       5.0 us      7 TFLOPS  WRONG 5.00e-01  torch",
        "  the fastest other kernel: 1.000 0.833 times theirs",
        "  the fastest other kernel: 0.800 2.000 times ours",
        "  the fastest other kernel: 0.400 1.000 times torch",
        "  wheel refuses: no such shape",
    ]
    assert beside_table({**record, "kernels": kernels[1:2], "refused": {}}).splitlines() == ["a point: 3 MB", ours]


def test_checks_of_other_kernels_are_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that were checked; records say who refuses the point, and the file which packages there were."""
    kernels = [{"kernel": name, "check": None} for name in ("right", "wrong", "unchecked")]
    asked, found = list[Any](), Others({"right": print}, {"right": 1e-3, "wrong": 0.5}, {"theirs": "no such shape"})

    def run(*given: Any, others: Any) -> dict[str, Any]:
        asked.extend([given, others("inputs")])
        return {"kernels": kernels}

    monkeypatch.setattr(baselines, "run_point", run)
    monkeypatch.setattr(baselines, "configs_of", lambda store, point, target, variants: (target, variants))
    monkeypatch.setattr(baselines.Beside, "others", lambda self, *given: asked.append((self, *given)) or found)
    store, host, point = ArtifactStore("none"), Host("some GPU", 132, 1), POINTS["dense"]
    made = RunBeside((point,), tmp_path, tmp_path, variants=True, site=tmp_path)
    record = made.measure(point, store, host)
    checks = [{"error": 1e-3, "passed": True}, {"error": 0.5, "passed": False}, None]
    assert [one["check"] for one in record["kernels"]] == checks and record["refused"] == {"theirs": "no such shape"}
    assert asked == [(Beside(store, host.target, tmp_path), point, "inputs"), (point, (host.target, True), store), {"right": print}]
    sites = list[Any]()
    monkeypatch.setattr(baselines, "Recorded", lambda *given: sites.append(given))
    made.recorded()
    assert sites == [(tmp_path, "gemm", tmp_path)]


def test_every_launch_of_decoded_weights_has_another_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are checked on the first, and timed on ten that are equal."""
    point = dense(8, 256, 128).having("fp8xmxfp4")
    launched, draw = list[GemmTensors](), PointInputs.draw

    def loaded(configs: Any, store: Any, tensors: GemmTensors) -> dict[str, Callable[[], None]]:
        assert (configs, store) == ([config], "store")
        return {"one": lambda: launched.append(tensors)}

    def time(launches: dict[str, Callable[[], None]], *_: int) -> dict[str, Times]:
        for _ in range(11):
            launches["one"]()
        return {"one": Times(1.0, 1.0, 1.0)}

    for name, one in {"loaded": loaded, "time_graphs": time, "time_back_to_back": time, "variant": str}.items():
        monkeypatch.setattr(session, name, one)
    config: Any = SimpleNamespace()
    monkeypatch.setattr(session, "asdict", lambda one: {} if one is config else asdict(one))
    monkeypatch.setattr(session.PointInputs, "draw", lambda point: draw(point, "cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    (kernel,) = run_point(point, [config], "store")["kernels"]  # type: ignore[arg-type]
    assert not kernel["check"]["passed"], "nothing was written"
    checked, *timed = launched
    places = [one.b.data_ptr() for one in timed]
    assert len(set(places)) == 10 and places == [*places[:10], *places[:10], *places[:2]] and places[0] == checked.b.data_ptr()
    assert all(torch.equal(one.b, checked.b) and one.a is checked.a and one.d is checked.d for one in timed)
    assert checked.b.dtype == torch.uint8 and checked.b.shape == (1, 1, 17408), "tiles as the kernel reads them"


def test_kernels_are_named_by_what_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a folder must not have one name."""
    monkeypatch.setattr(session, "LoadedGemm", lambda config, store, device: lambda tensors: (config, store, device, tensors))
    problem = dense(512, 512, 1024).problem
    base = {"block_m": 128, "block_n": 256, "num_stages": 3}
    named = {
        "128x256 w2 c1 s3 g8 k1": base,
        "128x128 w2 c1 s3 g8 k1": {**base, "block_n": 128},
        "128x256 w2 c2 s3 g8 k1": {**base, "cluster": 2},
        "128x256 w2 c1 s2 g8 k1": {**base, "num_stages": 2},
        "128x256 w2 c1 s3 g4 k1": {**base, "group_m": 4},
        "128x256 w2 c1 s3 g8 k1 half_tiles": {**base, "half_tiles": True},
        "128x256 w2 c1 s3 g8 k1 dynamic_schedule": {**base, "dynamic_schedule": True},
        "64x64 w1 c1 s3 g8 k4": {"block_m": 64, "block_n": 64, "warpgroups": 1, "num_stages": 3, "k_in_flight": 4},
        "64x64 w1 c2 s3 g8 k1 split_k": {"block_m": 64, "block_n": 64, "warpgroups": 1, "num_stages": 3, "cluster": 2, "split_k": True},
        "64x128 w1 c1 s4 g8 k1 b2": {"block_m": 64, "block_n": 128, "warpgroups": 1, "num_stages": 4, "burst": 2},
        "64x128 w2 c1 s3 g8 k1": {"block_m": 64, "block_n": 128, "warpgroups": 2, "num_stages": 3},
        "8x128 w2 c1 s3 g8 k1 swap_ab": {"block_m": 8, "block_n": 128, "warpgroups": 2, "num_stages": 3, "swap_ab": True},
    }
    configs = [GemmConfig(problem, **fields) for fields in named.values()]
    tensors = GemmTensors(*(torch.zeros(1) for _ in range(5)))
    launches = session.loaded(configs, "store", tensors)  # type: ignore[arg-type]
    assert {name: one() for name, one in launches.items()} == {
        name: (config, "store", torch.device("cpu"), tensors) for name, config in zip(named, configs, strict=True)
    }


def test_an_estimate_is_of_the_rows_of_each_group() -> None:
    """With 16 of them a tile of 64 rows has more to do than one of 16, with 64 four of those have."""
    for rows, narrow in ((16, True), (64, False)):
        point = grouped(PACKED, [rows] * 32, 4096, 4096).having("fp8xmxfp4")
        few, many = (GemmConfig(point.problem, m, 256, swap_ab=True) for m in (16, 64))
        assert (estimate(point, few) < estimate(point, many)) == narrow
        assert within_reach(point, [few]) == [few] and within_reach(point, []) == []


def test_tiles_of_bf16_are_not_asked_for_blocks_in_flight() -> None:
    """Which are those of FP8: its sums stay in the tensor core."""
    fp8, bf16 = (candidates(dense(512, 4096, 7168).having(recipe), 100) for recipe in ("fp8xfp8", "bf16xbf16"))
    assert {one.k_in_flight for one in bf16} == {1} != {one.k_in_flight for one in fp8}
    assert {(one.block_m, one.block_n) for one in bf16} == {(one.block_m, one.block_n) for one in fp8}


@pytest.mark.parametrize("recipe", ["fp8xfp8", "bf16xbf16", "fp8xmxfp4"])
def test_candidates_begin_with_what_is_chosen(recipe: str) -> None:
    base = grouped(PACKED, [3, 0, 42], 256, 128)
    point = GemmPoint(replace(base.problem, recipe=recipe), base.counts)
    found, fewer = candidates(point), candidates(point, 1)
    assert found[0] == fewer[0] == choose(point.problem, Target.typical("sm_90a"), 45)
    assert len(set(found)) == len(found) and all(isinstance(one, GemmConfig) and one.problem == point.problem for one in found)
    assert {one.dynamic_schedule for one in found} == {False, True}
    if recipe != "fp8xmxfp4":
        assert len(fewer) < len(found) and len({(one.block_m, one.block_n) for one in fewer[1:]}) == 1
