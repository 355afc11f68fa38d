"""A point of GEMMs on the CPU: its operands, the check of what kernels make of them, the record, and its text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megamoe_dsl import GemmConfig, choose
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.gemm import session
from megamoe_dsl.bench.gemm.point import GemmPoint, candidates, dense, grouped
from megamoe_dsl.bench.gemm.session import Others, PointInputs, in_rotation, run_point, table
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
    other: Any = None if alone else lambda *_: Others({"theirs": lambda: None}, {}, {"theirs too": "no such shape"})
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
    assert ("2.000 2.000" in text and "theirs too refuses: no such shape" in text) == (not alone)


def test_a_point_counts_what_it_moves() -> None:
    """B of a group without rows stays in memory."""
    point = POINTS[PACKED]
    assert point.flop == 2.0 * 45 * 256 * 128
    assert point.num_bytes == pytest.approx(45 * (128 + 128 / 128 * 4) + 2 * 256 * 128 + 43 * 256 * 2, rel=0.01)
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
