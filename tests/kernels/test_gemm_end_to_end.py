"""The GEMM's PTX in the simulator: exact on exact data, to the bit on normal data, without a finding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gemm_runs import BY_NAME, RUNS
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


def test_runs_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(RUNS) and {*TWINS, *TWINS.values()} <= set(BY_NAME)
