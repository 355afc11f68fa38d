"""Every tier of the presets, at 8 ranks and 148 SMs, fits the chip: no spills, registers within budgets, SMEM and TMEM within capacity.

`pytest -rP tests/kernels/test_resources.py` shows compile times.
"""

import pytest
from golden_figures import has_figures

from chip_fit import compile_fitting
from megamoe_dsl import Target, choose
from megamoe_dsl.arch import SMEM_BYTES
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.hardware.cta_pair import TMEM_COLUMNS
from megamoe_dsl.inspect.inspection import register_use
from megamoe_dsl.kernels.moe.sm100.choose import TIERS
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.presets import MEASURED, PRESETS
from sweep import sample


def config_of(name: str, block_m: int) -> Sm100Config:
    return choose(PRESETS[name].problem(8192), Target.typical("sm_100a", 148), 128, block_m=block_m)


EVERY = [(name, tier.block_m) for name in MEASURED for tier in TIERS]


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "block_m"), [one for one in EVERY if not has_figures(config_of(*one))])
def test_tier_fits_the_chip(name: str, block_m: int) -> None:
    """Of the others tests/golden/test_golden.py says so."""
    compile_fitting(name, config_of(name, block_m), SMEM_BYTES)


@pytest.mark.parametrize(("name", "block_m"), EVERY)
def test_tier_has_stages_and_columns(name: str, block_m: int) -> None:
    config = config_of(name, block_m)
    assert config.num_stages >= 4
    assert config.tmem.used <= config.tmem.allocated <= TMEM_COLUMNS


@sample("pro")
@pytest.mark.parametrize("name", MEASURED)
def test_more_than_64_local_experts_fit_too(name: str) -> None:
    config = choose(PRESETS[name].problem(128, num_ranks=2), Target.typical("sm_100a", 148), 128)
    artifact = compile_kernel(config)
    assert artifact.listing.spills == (0, 0)
    assert all(use.fits for use in register_use(config.registers, artifact.listing))
