"""The GEMM's PTX in the simulator: exact on exact data, to the bit on normal data, without a finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gemm_runs import BY_NAME, RUNS
from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.blocks.gemm.problem import GemmProblem
from megamoe_dsl.blocks.gemm.sm100.config import Sm100GemmConfig
from megamoe_dsl.quant import no_scales
from megamoe_dsl.runtime.gemm_tensors import GemmTensors
from megamoe_dsl.runtime.simulated import simulate_gemm
from ptx_of import artifact
from sweep import rarely, sample

NORMAL = (
    "rows-64",
    "rows-128-two-splits",
    "split-k",
    "swapped-24",
    "packed-pairs",
    "fp4-half",
    "fp4-split-k",
    "fp4-rows-256",
    "bf16-24",
    "bf16-split-k",
)

TWINS = {
    "rows-128": "rows-128-two-splits",
    "pairs": "pairs-dealt",
    "f32": "masked-f32",
    "packed": "packed-pairs",
    "masked": "masked-pairs",
    "aligned-pairs": "packed-pairs",
    "packed-swapped": "contiguous-swapped",
    "masked-swapped": "contiguous-swapped",
    "fp4-8": "fp4-half",
    "fp4-64": "fp4-half",
    "fp4-deep": "fp4-quarter",
    "fp4-half-one-warpgroup": "fp4-half",
    "fp4-split-k-64": "fp4-split-k",
    "fp4-contiguous": "fp4-packed",
    "fp4-masked": "fp4-packed",
    "fp4-rows-128": "fp4-rows-128-halves",
    "fp4-rows-accumulate": "fp4-rows-256",
    "fp4-rows-contiguous": "fp4-rows-packed",
    "fp4-rows-masked": "fp4-rows-256",
    "bf16-8": "bf16-24",
    "bf16-contiguous": "bf16-packed",
    "bf16-masked": "bf16-packed",
}
"""Runs for the sweep, and those of the suite that have their code."""


@sample(
    "one-row",
    "half_tiles",
    "deep",
    "swapped-8",
    "accumulate",
    "contiguous-pairs",
    "contiguous-nothing",
    "aligned-swapped",
    "packed-weights-first",
    "masked-f32",
    "fp4-split-k",
    "fp4-packed",
    "fp4-rows-256",
    "bf16-24",
)
@pytest.mark.parametrize("name", [rarely(name) if name in TWINS else name for name in BY_NAME])
def test_every_element_is_exact(name: str) -> None:
    """Launched twice without a pause: the second finds the counter of tiles as the first did."""
    run = BY_NAME[name]
    case = run.case(exact=True)
    launches = 1 if run.config.problem.accumulate else 2
    expected = case.reference()
    report = simulate_gemm(artifact(run.config), case.tensors, launches=launches)
    assert not report.findings and not report.warnings
    assert torch.equal(case.tensors.d, expected)


@sample("swapped-24", "fp4-split-k", "fp4-rows-256", "bf16-24")
@pytest.mark.parametrize("name", NORMAL)
def test_rounding_is_the_tensor_cores(name: str) -> None:
    """Partial sums as Hopper forms them, then one fused multiplication and addition for each block of 128 of K, in order; BF16 has only
    sums. Where K is split there is an addition more."""
    run = BY_NAME[name]
    case = run.case(exact=False)
    expected = case.reference("hopper", run.config.most_k_blocks)
    assert not simulate_gemm(artifact(run.config), case.tensors, seed=1).findings
    assert torch.equal(case.tensors.d, expected)


def test_rows_beyond_a_groups_capacity_are_cut_off() -> None:
    """Counts of a masked problem that say more than there is room for, or less than nothing."""
    run = BY_NAME["masked-f32"]
    case = run.case(exact=True)
    groups, capacity = case.tensors.groups, case.tensors.a.shape[1]
    assert groups is not None and max(run.counts) == capacity
    groups[:3] = torch.tensor([capacity + 9, 1 << 30, -5])
    spans = ((0, 0, capacity), (1, capacity, capacity), *(span for span in case.spans if span[0] > 2))
    expected = replace(case, spans=spans).reference()
    assert not simulate_gemm(artifact(run.config), case.tensors).findings
    assert torch.equal(case.tensors.d, expected)


def test_ends_before_the_first_row_are_nothing() -> None:
    """A group then begins at row 0, not before it."""
    run = BY_NAME["packed-split-k"]
    case = run.case(exact=True)
    groups = case.tensors.groups
    assert groups is not None and case.spans[1][0] == 1
    groups[0] = -5
    expected = replace(case, spans=((1, 0, int(groups[1])), *case.spans[2:])).reference()
    assert not simulate_gemm(artifact(run.config), case.tensors).findings
    assert torch.equal(case.tensors.d, expected)


@pytest.mark.parametrize("make", [GemmConfig, partial(GemmConfig, swap_ab=True), Sm100GemmConfig])
def test_rows_of_d_lie_beyond_31_bits(make: Callable[..., Any], tmp_path: Path) -> None:
    """Of elements: those of a group are behind 2^31 of the group before, in a file that takes no space. The last rows are no whole tile."""
    rows, columns = (1 << 21) + 128, 1024
    problem = GemmProblem(columns, 64, "masked", 2, recipe="bf16xbf16")
    tile = (64,) if make is Sm100GemmConfig else (64, 64)
    a, b = torch.empty(2, rows, 64, dtype=torch.bfloat16), torch.randint(-2, 3, (2, columns, 64)).bfloat16()
    a[1, :70] = torch.randint(-2, 3, (70, 64)).bfloat16()
    d = torch.from_file(str(tmp_path / "d"), shared=True, size=2 * rows * columns, dtype=torch.bfloat16).view(2, rows, columns)
    tensors = GemmTensors(a, no_scales(a), b, no_scales(b), d, torch.tensor([0, 70], dtype=torch.int32))
    assert not simulate_gemm(artifact(make(problem, *tile, num_sms=2)), tensors, race=False).findings
    assert torch.equal(d[1, :70].float(), a[1, :70].float() @ b[1].float().T) and not d[1, 70:192].any() and not d[0, -128:].any()


def test_runs_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(RUNS) and {*TWINS, *TWINS.values()} <= set(BY_NAME)
