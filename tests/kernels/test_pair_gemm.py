"""The GEMM of CTA pairs in the simulator: exact on exact data, within its bound on normal data, without a finding.

A sample runs with the suite, all of it with

    python -m pytest -m "sweep or not sweep" tests/kernels/test_pair_gemm.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from megamoe_dsl.blocks.gemm.problem import GemmProblem
from megamoe_dsl.blocks.gemm.sm100 import choose as sm100_choose
from megamoe_dsl.blocks.gemm.sm100.config import Sm100GemmConfig
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernel_cases.gemm import GemmCase
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.presets import PROJECTIONS, projection
from megamoe_dsl.runtime.simulated import simulate_gemm
from megamoe_dsl.target import Target
from pair_gemm_runs import PAIR_RUNS, PLAIN, W4A4, W4A8, PairRun
from ptx_of import artifact
from sweep import rarely

SAMPLE = {
    "fp8xfp4-64-128",
    "mxfp8xmxfp8-64-128",
    "masked-few-nvfp4xnvfp4",
    "contiguous-mxf4xmxf4",
    "masked-few-fp8xfp4",
    "accumulate",
    "bf16xbf16-64",
    "masked-bf16xbf16",
    "aligned-fp8xfp4",
}
PADDING = "tcgen05.ld of uninitialized TMEM"  # rows that no MMA covers, which are not stored


def sampled(sample: set[str]) -> list[object]:
    assert sample < set(PAIR_RUNS)
    return [name if name in sample else rarely(name) for name in PAIR_RUNS]


def run_within(run: PairRun, case: GemmCase, *, exact: bool, launches: int = 1, seed: int = 0) -> torch.Tensor:
    """D, which lies between its ends; no finding, no warning."""
    low, high = case.ends(exact=exact)
    report = simulate_gemm(artifact(run.config), case.tensors, launches=launches, seed=seed)
    assert not report.findings and [text for text in report.warnings if PADDING not in text] == []
    d = case.tensors.d
    assert bool(((low <= d) & (d <= high)).all())
    return d


@pytest.mark.parametrize("name", sampled(SAMPLE))
def test_every_element_is_exact(name: str) -> None:
    """Launched twice without a pause: the second finds counter, barriers and tensor memory as the first did."""
    run = PAIR_RUNS[name]
    run_within(run, run.case(exact=True), exact=True, launches=1 if run.config.problem.accumulate else 2)


@pytest.mark.parametrize("name", sampled({"contiguous-nvfp4xnvfp4", "packed-64-bf16xbf16"}))
def test_normal_numbers_are_within_their_bound(name: str) -> None:
    run = PAIR_RUNS[name]
    run_within(run, run.case(exact=False), exact=False, seed=1)


@pytest.mark.parametrize("block_m", [64, *map(rarely, (32, 128, 192))])
def test_block_k_changes_no_bit(block_m: int) -> None:
    """Normal numbers, whose sums depend on their order: both depths of a stage add in the same one."""
    found = []
    for block_k in (128, 256):
        run = PAIR_RUNS[f"{W4A4}-{block_m}-{block_k}"]
        case = PAIR_RUNS[f"{W4A4}-{block_m}-128"].case(exact=False)
        found.append(run_within(run, case, exact=False))
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["masked-few-fp8xfp4", rarely("fp8xfp4-64-128")])
def test_the_launching_function_makes_maps_that_serve(name: str) -> None:
    """What other programs call: it makes the tensor maps itself, of unpacked weights too."""
    from cuda.bindings.driver import CUstream
    from cutlass import Int32, Int64

    from megamoe_dsl.sim.host.run import run

    config, case, kernel = PAIR_RUNS[name].config, PAIR_RUNS[name].case(exact=True), find_kernel("gemm")
    t, operands, counter = case.tensors, case.tensors.operands(case.problem), torch.zeros(1, dtype=torch.int32)
    expected, types = case.reference(), {"Int32": Int32, "Int64": Int64}
    values = t.arguments(case.problem, operands, counter.data_ptr())
    arguments = kernel.arguments_type(config)(*(types[kind](values[one]) for one, kind in kernel.arguments(config).arguments))
    buffers = [*operands.values(), t.d, counter]
    report = run(kernel.launcher(config), config, arguments, CUstream(0), buffers=buffers)
    assert not report.findings and torch.equal(t.d, expected)


def test_a_wrong_bit_is_noticed() -> None:
    """The interval is no wider than a rounding of BF16: one unit off lies outside of it nearly everywhere."""
    case = PAIR_RUNS["fp8xfp4-64-128"].case(exact=False)
    low, high = case.ends(exact=False)
    other = (high.view(torch.int16) ^ 1).view(torch.bfloat16)
    assert bool((low <= high).all()) and float((low == high).float().mean()) > 0.9
    assert float(((low <= other) & (other <= high)).float().mean()) < 0.1


# --- configurations
def test_without_scales_tensor_memory_holds_sums_alone() -> None:
    """Of two tiles of 256 rows; a stage is 64 values of K."""
    config = Sm100GemmConfig(GemmProblem(4096, 320, recipe=PLAIN), 256)
    assert (config.tmem.used, config.tmem.accumulators, config.block_k, config.k_blocks) == (512, 2, 64, 5)
    assert [one.name for one in config.tmem.fields] == ["accumulator 0", "accumulator 1"] and config.stage.scales(2) == ()


PROBLEM = GemmProblem(4096, 7168, recipe=W4A8)
BAD = {
    "problem.recipe = 'fp8xfp8': must be fp8xfp4 or mxf4xmxf4 or mxfp8xmxfp8 or nvfp4xnvfp4 or bf16xbf16 for sm_100a": {
        "problem": replace(PROBLEM, recipe="fp8xfp8")
    },
    "problem.kind = 'packed': must be one of dense, contiguous, masked, aligned on sm_100a, where scales of A come in atoms of 128 rows": {
        "problem": replace(PROBLEM, kind="packed", num_groups=4)
    },
    "block_m = 96: must be one of [32, 64, 128, 192]": {"block_m": 96},
    "block_m = 192: must be a divisor of 128 for a contiguous problem": {
        "problem": replace(PROBLEM, kind="contiguous", num_groups=4),
        "block_m": 192,
    },
    "block_k = 256: must be 128 for k = 7168 of fp8xfp4": {"block_k": 256},
    "block_k = 256: must be 128 for k = 640 of mxf4xmxf4": {"problem": GemmProblem(4096, 640, recipe=W4A4), "block_k": 256},
    "block_m = 256: must be one of [32, 64, 128, 192]": {"block_m": 256},
    "block_k = 128: must be 64 for k = 320 of bf16xbf16": {"problem": GemmProblem(4096, 320, recipe=PLAIN), "block_k": 128},
    "num_sms = 147: must be a positive multiple of 2": {"num_sms": 147},
    "group_m = 0: must be positive": {"group_m": 0},
    "dynamic_schedule = 1: must be True or False": {"dynamic_schedule": 1},
    "num_stages = 99: must be between 2 and 8, or 0 for the deepest": {"num_stages": 99},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_configurations_name_field_value_and_what_is_allowed(message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Sm100GemmConfig(**{"problem": PROBLEM, "block_m": 128, **BAD[message]})
    assert str(error.value) == message


def test_an_estimate_looks_at_tiles_of_so_many_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choosing takes as long for many rows as for few."""
    seen: list[int] = []
    monkeypatch.setattr(sm100_choose, "tile_clocks", lambda tile, rows: seen.append(rows) or rows)
    tile = Sm100GemmConfig(GemmProblem(256, 256, kind="dense", num_groups=1, recipe=W4A8), 64, num_sms=2)
    assert sm100_choose.clocks(tile, 3 * 64 + 5) == 4 * (3 * 64 + 5) / 4 and seen == [64, 5]


@pytest.mark.parametrize("recipe", [W4A8, W4A4, PLAIN])
def test_every_matrix_of_a_model_has_configurations(recipe: str) -> None:
    """Rows of each group on every tile: few on the smallest, many on the largest."""
    for name in PROJECTIONS:
        problem = replace(projection(name).problem, kind="dense", num_groups=1, recipe=recipe)
        chosen = [find_kernel("gemm").choose(problem, Target.typical("sm_100a"), rows) for rows in (1, 64, 100_000)]
        assert isinstance(chosen[0], Sm100GemmConfig) and chosen[0].num_stages >= 5
        assert chosen[0].block_m == 32 and chosen[-1].block_m in ((192, 256) if recipe == PLAIN else (192,))
        depth = 64 if recipe == PLAIN else 256 if recipe == W4A4 and problem.k % 256 == 0 else 128
        assert {one.block_k for one in chosen} == {depth}
