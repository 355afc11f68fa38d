"""The SM100 kernel in NVFP4 (nvfp4xnvfp4) on simulated ranks: scale words of 64 channels, factors, faults that show.

Race detector on; y equals the reference bit for bit, or lies in its bound on random data.  What it shares with mxf4xmxf4 is proved in
test_w4a4.py.  A sample runs with the suite, all of it with

    python -m pytest -m "sweep or not sweep" tests/kernels/test_nvfp4.py
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from fault_runs import sign_of, with_fault
from mega_moe_runs import config, prove
from mega_moe_runs import problem as any_problem

from chip_fit import compile_fitting
from megamoe_dsl import Target, choose
from megamoe_dsl.arch import SMEM_BYTES
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.cases import Case, random_case, random_weights
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig
from megamoe_dsl.kernels.moe.sm100.choose import tiers_of
from megamoe_dsl.kernels.moe.unfused.family import stage_configs
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.problem import Problem
from ptx_of import artifact
from sweep import rarely


def problem(tokens: int = 24, **changes: Any) -> Problem:
    return any_problem(tokens, **{"hidden": 512, "intermediate": 256, "num_experts": 4, "recipe": "nvfp4xnvfp4", **changes})


EVERY = [(tier.block_m, block_k) for tier in tiers_of(problem()) for block_k in (128, 256)]


@pytest.mark.parametrize(("block_m", "block_k"), [one if one == (32, 256) else rarely(*one) for one in EVERY])
def test_every_tile(block_m: int, block_k: int) -> None:
    """An expert with a full and a partial block, a ring that wraps; exact data, then random data within its bound."""
    kernel = config(problem(block_m + 5), block_m=block_m, block_k=block_k, lookahead=1, num_stages=3)
    prove(kernel, [(block_m - 4, 9)], target_expert=1, mask=0.1)
    prove(kernel, [(3, block_m - 4)], seed=1, skew=True, exact=False)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "changes",
    [
        {"biases": True, "activation_clamp": 10.0},
        {"combine": "e4m3", "weigh_results": True, "num_ranks": 4},
        {"hidden": 416, "intermediate": 224, "biases": True},
        {"hidden": 32, "intermediate": 32, "num_ranks": 1},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_layers_of_other_kinds(changes: dict[str, Any]) -> None:
    """Also channels that end within a word of scales."""
    moe = problem(24, **changes)
    for exact in (True, False):
        prove(config(moe, block_m=32), [(24, 7, 0, 3)[: moe.num_ranks]], seed=exact, mask=0.1, exact=exact)


FAULTS = {
    "MMA dropped 1": ("wrong result", "simulator error"),
    "scale copy dropped 3": ("wrong result", "simulator error"),
    "bytes too many 0": ("deadlock",),
    "named barrier skipped 9": ("race", "simulator error"),
}
"""A fault of the kernel's PTX, and what may show it."""


@cache
def subject() -> tuple[Artifact, Case]:
    moe = problem(40, num_ranks=1, num_experts=2)
    return artifact(config(moe, block_m=32, num_sms=2, num_stages=2)), random_case(moe, (40,), 0)


@pytest.mark.parametrize("name", [None, *map(rarely, FAULTS)])
def test_fault_is_noticed(name: str | None) -> None:
    compiled, case = subject()
    sign = sign_of(with_fault(compiled, name), case, [(40,), (3,)], seed=0)
    assert (sign and sign.split(":")[0]) in (FAULTS[name] if name else (None,)), sign


@pytest.mark.sweep
@pytest.mark.parametrize(("block_m", "block_k"), EVERY)
def test_tile_fits_the_chip(block_m: int, block_k: int) -> None:
    """No spills, registers within budgets."""
    flash = PRESETS["flash"].problem(8192, recipe="nvfp4xnvfp4")
    compile_fitting("flash", choose(flash, Target.typical("sm_100a", 148), 128, block_m=block_m, block_k=block_k), SMEM_BYTES)


def test_what_other_launches_have_not_is_refused() -> None:
    moe = problem(hidden=512)
    with pytest.raises(ConfigError, match="recipe = 'nvfp4xnvfp4': must be one whose operands have scales, and no factors, in stages"):
        stage_configs(config(moe))
    with pytest.raises(ConfigError, match=r"problem\.recipe = 'nvfp4xnvfp4': must be "):
        DispatchGemmConfig(moe)
    with pytest.raises(ValueError, match="factors = None: must be a tensor of a problem with recipe = nvfp4xnvfp4"):
        replace(random_weights(moe, 0, 0), factors=None).validate(moe)
    given = random_weights(replace(moe, recipe="fp8xfp4"), 0, 0)
    with pytest.raises(ValueError, match="factors = 'a tensor': must be None of a problem with recipe = fp8xfp4"):
        replace(given, factors=random_weights(moe, 0, 0).factors).validate(replace(moe, recipe="fp8xfp4"))
