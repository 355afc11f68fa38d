"""A new epilogue is one function: the kernel takes it with its configuration, and its loaders and its main loop stay as they are."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize(("m", "block_m"), [(21, 32), (130, 128)], ids=["columns", "rows"])
def test_compiled_and_simulated(m: int, block_m: int) -> None:
    from relu import BIAS, gemm_kernel, store_relu

    operands = gemm_kernel.Operands.random(m, 512, 256)
    compiled = gemm_kernel.compile_gemm(gemm_kernel.GemmConfig(512, 256, block_m, tiled=False, num_sms=2, epilogue=store_relu))
    d, report = gemm_kernel.simulate(compiled, operands)
    assert torch.equal(d, (operands.product + BIAS).clamp(min=0)) and not report.findings
    assert (d == 0).any() and (d > 0).any()
