"""The GEMM of `examples/09_your_first_kernel.py` is exact in the simulator, without a race, in all shapes of tiles."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from sweep import rarely


@pytest.mark.parametrize(
    ("m", "block_m", "tiled", "num_sms"),
    [(21, 8, True, 2), rarely(40, 32, False, 1), (200, 128, True, 2), (130, 128, False, 1)],
    ids=["columns", "wide-columns", "rows", "half-tile"],
)
def test_result_is_exact(m: int, block_m: int, tiled: bool, num_sms: int) -> None:
    """Several tiles for each CTA, a last one that is not full, more K blocks than stages, and scales that differ everywhere."""
    gemm = import_module("09_your_first_kernel")
    operands = gemm.Operands.random(m, 512, 384, seed=m)
    config = gemm.GemmConfig(512, 384, block_m, tiled, num_sms)
    d, report = gemm.simulate(config, gemm.compile_gemm(config)[0], operands)
    assert torch.equal(d, operands.product) and not report.findings
