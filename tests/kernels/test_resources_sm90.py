"""Every SM90 tile of the presets, at 8 ranks and 132 SMs, fits the chip: no spills, registers within budgets, SMEM within capacity."""

import pytest
from chip_fit import compile_fitting

from megamoe_dsl.compile import compile_kernel
from megamoe_dsl.config_sm90 import BLOCK_M, SMEM_CAPACITY, Sm90Config
from megamoe_dsl.inspect.registers import register_use
from megamoe_dsl.presets import PRESETS

STAGES = {8: 6, 16: 6, 32: 5, 64: 4, 96: 4, 128: 4}
"""Depth of the ring that a tile leaves room for."""


def config_of(name: str, block_m: int) -> Sm90Config:
    return Sm90Config.choose(PRESETS[name].problem(8192, dtypes="fp8xfp8"), 128, block_m=block_m, num_sms=132)


@pytest.mark.parametrize("block_m", BLOCK_M)
@pytest.mark.parametrize("name", PRESETS)
def test_tile_fits_the_chip(name: str, block_m: int) -> None:
    config = config_of(name, block_m)
    compile_fitting(name, config, SMEM_CAPACITY)
    assert config.num_stages == STAGES[block_m]
    assert config.swap_ab == (block_m < 128)


@pytest.mark.parametrize("name", PRESETS)
def test_tokens_as_columns_of_128_leave_no_registers(name: str) -> None:
    """192 accumulators and partial sums a thread, and scales beside them: it just fits, with more promotion than tokens as rows."""
    config = config_of(name, 128).replace(swap_ab=True)
    artifact = compile_kernel(config)
    assert artifact.listing.spills == (0, 0)
    assert 208 < register_use(config, artifact.listing)[-1].used <= config.registers.epilogue
