"""bench/batch_invariance.py without a GPU: what it counts, and its ways on simulated and reference kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import batch_invariance as script
from megamoe_dsl import gemm_weights
from megamoe_dsl.arch import SM90
from megamoe_dsl.blocks.gemm.problem import GemmProblem
from megamoe_dsl.runtime.gemm import Operands
from megamoe_dsl.runtime.gemm_tensors import GemmTensors
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from megamoe_dsl.target import Target
from simulated_gpu import SimulatedKernel, simulated_gpu, visible

MOST = 4
TARGET = Target(SM90, 4, "simulated")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens of a small layer on the CPU; nothing is compiled ahead."""
    monkeypatch.setattr(script, "MOST", MOST)
    monkeypatch.setattr(script, "DEVICE", "cpu")
    monkeypatch.setattr(
        script, "SHAPE", replace(script.SHAPE, hidden=256, intermediate=128, num_experts=4, topk=2, max_tokens_per_rank=MOST)
    )
    monkeypatch.setattr(script, "RING", 128)
    monkeypatch.setattr(script, "GEMM", (208, 512))
    monkeypatch.setattr(script, "compile_ahead", lambda configs: len(list(configs)))
    monkeypatch.setattr(script, "grid_target", lambda target: TARGET)
    monkeypatch.setattr(script, "target_or_at_hand", lambda: TARGET)
    monkeypatch.setattr(script, "in_a_graph", lambda rows: rows)


def ways(**off: float) -> Iterator[script.Way]:
    """The first is right; others add something to their first element."""
    y = torch.randn(MOST, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    for name, added in {"right": 0.0, **off}.items():

        def rows(tokens: torch.Tensor, added: float = added) -> torch.Tensor:
            found = y[tokens].clone()
            found[0, 0] += added
            return found

        yield script.Way("group", name, rows)


def test_elements_that_differ_are_counted() -> None:
    right, wrong, nothing = script.records_of(ways(wrong=8.0, nothing=float("nan")), (1, 3))
    assert right == {
        **{"group": "group", "way": "right", "promised": True, "batches": 4, "elements": 24, "unequal": 0, "sizes": [], "passed": True}
    }
    for one in (wrong, nothing):
        assert (one["unequal"], one["sizes"], one["passed"]) == (4, [1, 3], False)
    assert script.line_of(wrong) == "group: wrong, 4 batches, 24 elements: 4 elements differ, in batches of [1, 3]"


def test_what_is_only_shown_fails_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    saved: list[Any] = []
    monkeypatch.setattr(script, "save", lambda folder, kind, records: saved.append(records))
    monkeypatch.setattr("sys.argv", ["batch_invariance.py", "--sizes", "1,2"])
    for promised, code in ((True, 1), (False, 0)):
        monkeypatch.setattr(
            script, "all_ways", lambda sizes, promised=promised: (replace(one, promised=promised) for one in ways(wrong=8.0))
        )
        assert script.main() == code
    assert [len(records) for records in saved] == [2, 2]


@pytest.mark.parametrize("text", ["0", "1,9", "a"])
def test_sizes_are_up_to_the_most(text: str) -> None:
    with pytest.raises(ValueError):
        script.read_sizes(text)


@pytest.mark.sweep
def test_layers_on_a_simulated_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way of the layer has the bits of the first."""

    class Layer:
        """`MegaMoE` on CPU tensors."""

        def __init__(self, problem: Any, weights: Any, **options: Any) -> None:
            symmetric = SymmetricBuffer.allocate(problem, SM90, device="cpu", pool_rows=options.get("pool_rows"))
            self.layer = MegaMoE(problem, weights, symmetric=symmetric, **options)

        def __call__(self, x: torch.Tensor, idx: torch.Tensor, topk_weights: torch.Tensor, **given: Any) -> torch.Tensor:
            y = torch.full((len(x), self.layer.problem.hidden), float("nan"), dtype=torch.bfloat16)
            SimulatedKernel.tensors = visible(self.layer, y=y, x=x, topk_idx=idx, topk_weights=topk_weights, x_sf=given["x_sf"])
            self.layer(x, idx, topk_weights, out=y, **given)
            return y

    monkeypatch.setattr(script, "MegaMoE", Layer)
    with simulated_gpu(monkeypatch):
        found = list(script.records_of(script.layers_of("fp8xfp8", "cancelling", (2,)), (2,)))
    assert [one["way"] for one in found][-2:] == ["MegaMoE on a ring", "MegaMoE(fused=False)"]
    assert [one["passed"] for one in found] == [True] * 4, found


@pytest.mark.parametrize("recipe", ["fp8xfp8", "bf16xbf16"])
def test_experts_by_the_reference(recipe: str) -> None:
    made = script.experts_of(recipe, (1, 3))
    (record,) = script.records_of(iter([next(made)]), (1, 3))
    assert record["passed"] and record["elements"] == 2 * 4 * 256


@pytest.mark.parametrize("recipe", ["fp8xfp8", "fp8xmxfp4", "bf16xbf16"])
def test_operands_of_gemms_fit(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def checked(a: Any, a_sf: Any, b: Any, b_sf: Any, *, out_dtype: torch.dtype, batch_invariant: bool) -> torch.Tensor:
        operands = Operands.given(a, a_sf, b, b_sf)
        problem = GemmProblem(*operands.matrix("dense"), output="f32", recipe=operands.recipe)
        d = torch.zeros(len(a), problem.n)
        GemmTensors(*operands[:4], d).check(problem)
        assert (problem.recipe, problem.n, problem.k) == (recipe, *script.GEMM)
        asked.append(batch_invariant)
        return d

    monkeypatch.setattr(script, "gemm", checked)
    monkeypatch.setattr(script, "gemm_weights", partial(gemm_weights, arch="sm_90a"))
    records = list(script.records_of(script.gemms_of(recipe, (1, 3)), (1, 3)))
    assert [one["promised"] for one in records] == [True, False] and set(asked) == {True, False}
