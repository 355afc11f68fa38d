"""A new epilogue is one part: the kernel takes it with its configuration, and its loaders and its main loop stay as they are."""

from __future__ import annotations

import pytest
import torch

BIAS = 1.0


@pytest.mark.parametrize(("m", "block_m"), [(21, 32), (130, 128)], ids=["columns", "rows"])
def test_compiled_and_simulated(m: int, block_m: int) -> None:
    from add_and_clamp import AddAndClamp, first_kernel

    operands = first_kernel.Operands.random(m, 512, 256)
    config = first_kernel.GemmConfig(512, 256, block_m, tiled=False, num_sms=2, epilogue=AddAndClamp(BIAS))
    d, report = first_kernel.simulate(config, first_kernel.compile_gemm(config)[0], operands)
    assert torch.equal(d, (operands.product + BIAS).clamp(min=0)) and not report.findings
    assert (d == 0).any() and (d > 0).any()
