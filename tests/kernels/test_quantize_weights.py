"""Matrices in E4M3 in the simulator: codes and scales are the reference's to the bit, as they lie and transposed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_faults import gone
from sm90_faults import at
from test_quantize_both import BARRIER

from megamoe_dsl import ProblemError
from megamoe_dsl.kernels.expert_routing.config import TokensConfig
from megamoe_dsl.kernels.expert_routing.problem import QuantizeWeightsProblem
from megamoe_dsl.quant import quantize_weight_e4m3
from megamoe_dsl.runtime.simulated import memory_of
from megamoe_dsl.sim import SimError
from ptx_of import artifact
from simulated_experts import simulate_launches


@pytest.mark.parametrize("place", range(2))
def test_every_barrier_is_needed(place: int) -> None:
    """Both of a block: its largest value is known, and its values are read."""
    w, kernel = torch.ones(3, 384, 256).bfloat16(), artifact(TokensConfig(QuantizeWeightsProblem(384, 256, True), 2))
    written = {"codes": torch.zeros(3, 256, 384).to(torch.float8_e4m3fn), "scales": torch.zeros(3, 2, 3)}
    arguments = {name: one.data_ptr() for name, one in {"w": w, **written}.items()}
    faulty = replace(kernel, ptx=at("a barrier", BARRIER, place, gone, ()).apply(kernel.ptx))
    try:
        assert simulate_launches(faulty, memory_of({"w": w}, written), {**arguments, "num_matrices": 3}).findings
    except SimError as error:
        assert "read of uninitialized shared memory" in str(error)


@pytest.mark.parametrize("transposed", [False, True])
def test_codes_and_scales_are_the_references(transposed: bool) -> None:
    """Blocks of zeros, and far apart; the largest value anywhere in a block."""
    w = torch.randn(3, 384, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    w[1, 130, 7], w[2, 255, 255], w[0, :128, :128] = 100, -50, 0
    codes, scales = quantize_weight_e4m3(w)
    expected = (codes.mT.contiguous(), scales.mT.contiguous()) if transposed else (codes, scales)
    written = {name: torch.zeros_like(one) for name, one in zip(("codes", "scales"), expected, strict=True)}
    kernel = artifact(TokensConfig(QuantizeWeightsProblem(384, 256, transposed), 2))
    arguments = {name: one.data_ptr() for name, one in {"w": w, **written}.items()}
    assert not simulate_launches(kernel, memory_of({"w": w}, written), {**arguments, "num_matrices": 3}).findings
    assert torch.equal(written["codes"].view(torch.uint8), expected[0].view(torch.uint8))
    assert torch.equal(written["scales"], expected[1])


def test_a_bad_problem_is_named() -> None:
    with pytest.raises(ProblemError, match="k = 192: must be a multiple of 128"):
        QuantizeWeightsProblem(256, 192)
