"""The SM100 kernel with packed E2M1 activations (mxf4xmxf4) on simulated ranks: tiles, BLOCK_K, routings, faults that show.

Race detector on; y equals the reference bit for bit, or lies in its bound on random data.  A sample runs with the suite, all of it with

    python -m pytest -m "sweep or not sweep" tests/kernels/test_w4a4.py
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from fault_runs import WATCHDOG_NS, sign_of, with_fault
from kernel_faults import RULES, all_faults
from mega_moe_runs import Layer, inputs, prove, received
from mega_moe_runs import config as any_config
from mega_moe_runs import problem as fp8_problem

from chip_fit import compile_fitting
from megamoe_dsl import Target, choose
from megamoe_dsl.arch import SMEM_BYTES
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.blocks.sm100 import outputs as passes
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.hardware.cta_pair import TMEM_COLUMNS
from megamoe_dsl.kernels.moe.sm100.choose import tiers_of
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.presets import MEASURED, PRESETS
from megamoe_dsl.problem import Problem
from megamoe_dsl.sim import SimError
from ptx_of import artifact
from sweep import sample


def problem(tokens: int = 24, **changes: Any) -> Problem:
    """A layer whose Linear1 has two stages of 256 channels or four of 128, its Linear2 one or two."""
    return fp8_problem(tokens, **{"hidden": 512, "intermediate": 256, "num_experts": 4, "recipe": "mxf4xmxf4", **changes})


def config(moe: Problem, **overrides: Any) -> Sm100Config:
    return any_config(moe, **overrides)


TIERS = tiers_of(problem())
EVERY = [(tier.block_m, block_k) for tier in TIERS for block_k in (128, 256)]


def sampled(cases: list[tuple[Any, ...]], sample: set[tuple[Any, ...]]) -> list[Any]:
    """All cases as parameters, those out of the sample behind the marker."""
    assert sample < set(cases)
    return [pytest.param(*case, marks=() if case in sample else pytest.mark.sweep) for case in cases]


@sample("32-256", "192-256")
@pytest.mark.parametrize(("block_m", "block_k"), sampled(EVERY, {(32, 256), (96, 128), (192, 256)}))
def test_every_tile(block_m, block_k):
    """Two launches: an expert with a full and a partial block, experts with a few tokens; a ring that wraps in the first tile or soon."""
    moe = problem(block_m + 5)
    kernel = config(moe, block_m=block_m, block_k=block_k, lookahead=1, num_stages=3)
    full = block_m - 4
    prove(kernel, [(full, 9), (3, full)], target_expert=1, mask=0.1)
    counts = received(random_case(moe, (full, 9), 0, target_expert=1))[0]
    assert counts[1] % block_m != 0 and counts[1] > block_m


ON_RANKS = [(block_m, block_k, ranks) for block_m, block_k in EVERY for ranks in (1, 2, 4)]


@pytest.mark.sweep
@pytest.mark.parametrize(("block_m", "block_k", "ranks"), sampled(ON_RANKS, {(64, 256, 4)}))
def test_every_tile_on_ranks(block_m, block_k, ranks):
    """Exact data, then random data within its bound: skewed routing, masked slots, a rank without tokens where there are several."""
    moe = problem(block_m + 5, num_ranks=ranks)
    kernel = config(moe, block_m=block_m, block_k=block_k, num_sms=2)
    tokens = {1: (block_m + 5,), 2: (0, block_m + 5), 4: (block_m // 2, 0, 3, 9)}[ranks]
    for exact in (True, False):
        prove(kernel, [tokens], seed=ranks, mask=0.1, skew=True, exact=exact)


@pytest.mark.sweep
@pytest.mark.parametrize(("block_m", "block_k"), sampled(EVERY, {(32, 128)}))
def test_launches_without_a_pause(block_m, block_k):
    """Three in a stream: a rank begins the next one while its peer may still be busy with the last."""
    counts = [(20, 11), (3, 20), (0, 9)]
    case = random_case(problem(20), (20, 20), 1)
    layer = Layer.of(config(case.problem, block_m=block_m, block_k=block_k, num_sms=2), case, seed=1)
    ranks, report = layer.stream(case, counts)
    assert [str(finding) for finding in report.findings] == []
    assert [(one.tokens, one.violations) for one in ranks] == [(tokens, 0) for both in counts for tokens in both]
    layer.check_workspace()


def outputs(kernel: Sm100Config, case: Case) -> list[torch.Tensor]:
    """y of a launch that is within the reference's bound and leaves nothing to report."""
    layer = Layer.of(kernel, case)
    layer.check(case)
    y, _ = layer.moe(inputs(case))
    return y


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [32, *(pytest.param(tier.block_m, marks=pytest.mark.sweep) for tier in TIERS[1:])])
def test_block_k_changes_no_bit(block_m):
    """Random data, whose sums depend on their order: both depths of a stage add in the same one."""
    moe = problem(block_m + 5, num_ranks=1)
    case = random_case(moe, (block_m - 3,), block_m, exact=False)
    one, other = (outputs(config(moe, block_m=block_m, block_k=block_k, num_sms=2), case) for block_k in (128, 256))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.sweep
@pytest.mark.parametrize(("ranks", "tokens"), sampled([(4, (5, 0, 9, 2)), (2, (17, 24)), (1, (24,))], {(4, (5, 0, 9, 2))}))
def test_random_data_on_ranks(ranks, tokens):
    """Skewed routing, a clamp, masked slots, a rank without tokens; counts that change from launch to launch."""
    moe = problem(24, num_ranks=ranks, num_experts=8, topk=3, activation_clamp=10.0)
    prove(config(moe, num_sms=2), [tokens, tokens[::-1]], mask=0.2, skew=True, exact=False)


@pytest.mark.sweep
def test_nothing_to_do():
    """No tokens, then tokens that go nowhere, then some: barriers pass, what goes nowhere comes back as zeros."""
    moe = problem(8, num_ranks=1, hidden=256)
    kernel = config(moe, num_sms=2)
    empty, masked, some = (random_case(moe, (count,), 0, mask=mask) for count, mask in ((0, 0.0), (7, 1.0), (8, 0.0)))
    layer = Layer.of(kernel, empty)
    for case in (empty, masked, some):
        layer.check(case)
    y, _ = layer.moe(inputs(masked))
    assert not y[0].view(torch.int16).any()


# --- faults
FAULTS = {
    "MMA dropped 1": ("wrong result", "simulator error"),
    "scale copy dropped 3": ("wrong result", "simulator error"),
    "bytes too many 0": ("deadlock",),
    "tcgen05 commit dropped 0": ("deadlock",),
    "named barrier skipped 9": ("race", "simulator error"),
}
"""A fault of the kernel's PTX, and what may show it."""


@cache
def subject() -> tuple[Artifact, Case]:
    moe = problem(40, num_ranks=1, num_experts=2)
    return artifact(config(moe, block_m=32, num_sms=2, num_stages=2)), random_case(moe, (40,), 0)


@pytest.mark.parametrize("name", [None, *FAULTS])
def test_fault_is_noticed(name):
    compiled, case = subject()
    if name is not None:
        assert {rule.name for rule in RULES} == {one.name.rsplit(" ", 1)[0] for one in all_faults(compiled.ptx)}
    sign = sign_of(with_fault(compiled, name), case, [(40,), (3,)], seed=0)
    assert (sign and sign.split(":")[0]) in (FAULTS[name] if name else (None,)), sign


@sample("packed_token")
@pytest.mark.parametrize("name", ["packed_token", "gather_rows"])
def test_a_wrong_row_is_noticed(monkeypatch, name):
    """Rows of other tokens; nibbles that no lane has exchanged."""
    right = getattr(passes, name)
    wrong = {"packed_token": lambda lane: right(lane ^ 8), "gather_rows": lambda first, second, lane: (first, second)}[name]
    compiled, case = subject()
    monkeypatch.setattr(passes, name, wrong)
    layer = Layer.of(artifact.__wrapped__(compiled.config), case, watchdog_ns=WATCHDOG_NS)
    try:
        ranks, report = layer.launch(case)
    except SimError as error:
        pytest.fail(f"a wrong result was to come out, not {error}")
    assert report.findings == [] and ranks[0].violations > 0


# --- configurations
SHAPES = [(name, block_m, block_k) for name in MEASURED for block_m, block_k in EVERY]


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "block_m", "block_k"), sampled(SHAPES, {("pro", 192, 256)}))
def test_tile_fits_the_chip(name, block_m, block_k):
    """No spills, registers within budgets; a ring of six stages at least, twelve of 128 channels."""
    kernel = choose(PRESETS[name].problem(8192, recipe="mxf4xmxf4"), Target.typical("sm_100a", 148), 128, block_m=block_m, block_k=block_k)
    compile_fitting(name, kernel, SMEM_BYTES)
    assert kernel.num_stages >= {128: 12, 256: 6}[block_k]
    assert kernel.tmem.used <= kernel.tmem.allocated <= TMEM_COLUMNS


def test_tiers_of_the_recipe():
    """The smallest tile has 32 tokens; stages of 256 channels where the tile is one of those that gain by it, if K is whole then."""
    flash = PRESETS["flash"].problem(8192, recipe="mxf4xmxf4")
    chosen = {tokens: choose(flash, Target.typical("sm_100a"), tokens) for tokens in (1, 64, 128, 256, 512, 4096)}
    assert [(one.block_m, one.block_k) for one in chosen.values()] == [(32, 256), (32, 256), (64, 256), (64, 256), (128, 128), (192, 256)]
    assert {one.store_block_m for one in chosen.values()} == {32}
    assert choose(replace(flash, intermediate=1920), Target.typical("sm_100a"), 128).block_k == 128


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_m": 16}, r"block_m = 16: must be one of \[32, 64, 96, 128, 192\]"),
        ({"store_block_m": 16}, "store_block_m = 16: must be 32 and a divisor of block_m"),
        ({"block_k": 64}, "block_k = 64: must be 128 or 256 for mxf4xmxf4"),
    ],
)
def test_what_a_configuration_may_have(changes, message):
    with pytest.raises(ConfigError, match=message):
        config(problem(), **changes)


def test_fp8_activations_have_one_block_k():
    with pytest.raises(ConfigError, match="block_k = 256: must be 128 for fp8xfp4"):
        config(problem(recipe="fp8xfp4"), block_k=256)
    with pytest.raises(ConfigError, match="block_k = 256: must be 128 for mxf4xmxf4"):
        config(problem(intermediate=128), block_k=256)
