"""GEMMs of CTA pairs that gather their rows, in the simulator: exact on exact data, within their bound on normal data, without a finding.

A sample runs with the suite, all of it with

    python -m pytest -m "sweep or not sweep" tests/kernels/test_pair_gather.py
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from test_pair_gemm import PADDING

from megamoe_dsl import choose
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.blocks.gemm.problem import GatherGemmProblem, GemmProblem
from megamoe_dsl.blocks.gemm.sm100.config import Sm100GemmConfig
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernel_cases.gather import gather_case
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.simulated import simulate_gemm
from megamoe_dsl.target import Target
from pair_gather_runs import PAIR_GATHER_BY_NAME, PAIR_GATHER_RUNS, PairGatherRun, pair_gather
from pair_gemm_runs import PLAIN
from ptx_of import artifact
from sweep import rarely, sample

ACTIVATED = tuple(name for name, run in PAIR_GATHER_BY_NAME.items() if run.config.problem.gate_up)
SAMPLE = {
    "gathered-blocked",
    "packed-packed",
    "blocked-blocked",
    "rows-192",
    "nvfp4",
    "nvfp4-gate_first",
    "nvfp4-scaled-gate_first",
    "nvfp4-scaled-interleaved",
    "forty-experts",
    "two-consumers",
    "two-pairs-sorted",
    "e2m1-gate-first",
    "two-pairs-gate-first",
    "stored-interleaved",
    "stored-up_first",
    "bf16xbf16-gathered-blocked",
    "bf16xbf16-packed-blocked",
    "bf16xbf16-largest",
    "bf16xbf16-up_first",
    "bf16xbf16-interleaved",
}
WIDE = Sm100GemmConfig(GatherGemmProblem(4096, 7168, num_groups=256, recipe="fp8xfp4"), 192, dynamic_schedule=True)


def run_within(run: PairGatherRun, *, exact: bool, launches: int = 1, seed: int = 0) -> None:
    """D lies between its ends; no finding, no warning."""
    case = run.case(exact=exact)
    ((d, low, high),) = case.compared(exact=exact).values()
    report = simulate_gemm(artifact(run.config), case.tensors, launches=launches, seed=seed)
    assert not report.findings and [text for text in report.warnings if PADDING not in text] == []
    assert bool(((low <= d) & (d <= high)).all())


@sample("packed-packed", "two-consumers", "two-pairs-sorted", "nvfp4")
@pytest.mark.parametrize("name", [name if name in SAMPLE else rarely(name) for name in PAIR_GATHER_BY_NAME if name not in ACTIVATED])
def test_every_row_is_exact(name: str) -> None:
    """Rows of no expert stay as they were; a second launch finds counter, barriers and tensor memory as the first did."""
    run_within(PAIR_GATHER_BY_NAME[name], exact=True, launches=2 if name in ("gathered-blocked", "many-experts") else 1)


@sample("gathered-packed")
@pytest.mark.parametrize("name", ["gathered-packed", "bf16xbf16-gathered-packed", rarely("e2m1-narrow"), rarely("nvfp4")])
def test_normal_numbers_are_within_their_bound(name: str) -> None:
    run_within(PAIR_GATHER_BY_NAME[name], exact=False, seed=1)


@sample("stored-interleaved", "nvfp4-scaled-gate_first", "bf16xbf16-up_first")
@pytest.mark.parametrize("name", [name if name in SAMPLE else rarely(name) for name in ACTIVATED])
def test_gate_and_up_are_activated_and_quantized(name: str) -> None:
    """And stored where they are asked for; to the bit on exact sums; rows of no expert and their scales stay as they were."""
    run = PAIR_GATHER_BY_NAME[name]
    case = run.case(exact=True)
    compared = case.compared(exact=True)
    assert not simulate_gemm(artifact(run.config), case.tensors).findings
    assert ("gate and up" in compared, "scales of D" in compared) == (
        run.config.problem.preactivations,
        run.config.problem.hidden.scale is not None,
    )
    assert all(torch.equal(written, expected) for written, expected, _ in compared.values())


def test_rows_that_are_not_there_are_those_that_are() -> None:
    """A list with numbers of no token reads none beyond the tokens; ends beyond the list are cut off."""
    run = PAIR_GATHER_BY_NAME["rows-32"]
    case = run.case(exact=True)
    t = case.tensors
    assert t.sources is not None
    t.sources[:3] = torch.tensor([-5, len(t.a), 1 << 30], dtype=torch.int32)
    clamped = t.sources.clamp(0, len(t.a) - 1).long()
    own = replace(case.packed.tensors, a=t.a[clamped], a_sf=t.a_sf[clamped])
    expected = replace(case.packed, tensors=own).reference()
    assert t.groups is not None
    t.groups[-1] += 100
    assert not simulate_gemm(artifact(run.config), t).findings
    assert torch.equal(t.d, expected)


@sample("config4")
@pytest.mark.parametrize(
    "config",
    [
        WIDE,
        replace(WIDE, consumers=2, num_stages=0),
        PAIR_GATHER_BY_NAME["stored-interleaved"].config,
        PAIR_GATHER_BY_NAME["packed-blocked"].config,
        PAIR_GATHER_BY_NAME["bf16xbf16-largest"].config,
        PAIR_GATHER_BY_NAME["bf16xbf16-interleaved"].config,
        PAIR_GATHER_BY_NAME["nvfp4-scaled-interleaved"].config,
    ],
)
def test_registers_are_enough(config: Sm100GemmConfig) -> None:
    """Nothing on the stack, and no load that what gives its bytes away does not wait for."""
    compiled = compile_kernel(config)
    assert compiled.resources.stack_bytes == 0 and compiled.resources.registers * config.num_threads <= 1 << 16
    assert compiled.overtaken_loads == []
    assert compiled.dynamic_smem <= config.arch.smem_bytes


@sample("config0")
@pytest.mark.parametrize(
    "config",
    [
        replace(WIDE, consumers=2, pairs=2, num_stages=0),
        PAIR_GATHER_BY_NAME["nvfp4-scaled-interleaved"].config,
        *(rarely(PAIR_GATHER_BY_NAME[name].config) for name in ("gate-first", "nvfp4-gate_first")),
    ],
)
def test_every_role_is_measured(config: Sm100GemmConfig) -> None:
    """Of a cluster that has everything, and of gate and up: loops are found by the functions that they come from."""
    compiled = compile_kernel(config, line_info=True)
    found = {one.key: one.instructions for one in compiled.kernel.measures(config, compiled.listing)}
    units = {"mma": ("k_block",), "token_gather": ("rows", "k_block"), "weight_loader": ("k_block",), "epilogue": ("8_rows",)}
    assert set(found) == {f"{role}_{unit}" for role, own in units.items() for unit in (*own, "tile")}
    assert found["token_gather_rows"] < found["token_gather_k_block"] < found["mma_k_block"]


@pytest.mark.parametrize(
    ("block_m", "consumers", "tiles", "columns"), [(64, 1, 2, 256), (64, 2, 2, 512), (192, 1, 2, 512), (128, 2, 1, 512), (256, 1, 1, 512)]
)
def test_tensor_memory_has_sums_of_two_tiles_where_they_fit(block_m: int, consumers: int, tiles: int, columns: int) -> None:
    """Beside the scales; a stage's weights lie in shared memory once for each consumer."""
    config = replace(WIDE, block_m=block_m, consumers=consumers, num_stages=0)
    assert (config.tmem.accumulators, config.tmem.allocated, config.block_n) == (tiles, columns, 256 * consumers)
    assert config.stage.weight_bytes == consumers * 128 * 128 and config.num_stages >= 4
    assert config.smem.region.size <= config.arch.smem_bytes


@pytest.mark.parametrize(("block_m", "consumers", "tiles"), [(128, 2, 2), (192, 2, 1), (256, 1, 2), (256, 2, 1)])
def test_without_scales_tensor_memory_holds_sums_alone(block_m: int, consumers: int, tiles: int) -> None:
    """AsteroMoE's tiles: up to (256, 512) of a pair."""
    problem = GatherGemmProblem(4096, 7168, num_groups=256, recipe=PLAIN)
    config = Sm100GemmConfig(problem, block_m, consumers=consumers, num_stages=0)
    assert (config.tmem.accumulators, config.block_n) == (tiles, 256 * consumers)
    assert config.tmem.used == tiles * consumers * block_m == sum(one.columns for one in config.tmem.fields)
    assert config.num_stages >= 4 and config.stage.scales(4) == () and "copied" not in [one.name for one in config.smem.barriers]


@pytest.mark.parametrize(("block_m", "consumers", "pairs"), [rarely(*one) for one in product((32, 64, 128, 192, 256), (1, 2), (1, 2))])
def test_every_tile_without_scales_is_exact(block_m: int, consumers: int, pairs: int) -> None:
    """Rows of experts of no tile, of one and of more."""
    tile = {"consumers": consumers, "pairs": pairs, "dynamic_schedule": True}
    run_within(
        pair_gather("plain-tile", (block_m + 9, 0, 1, 40), block_m, {"recipe": PLAIN, "n": 528, "k": 192}, **tile), exact=True, launches=2
    )


@sample("512")
@pytest.mark.parametrize("experts", [1, 128, 512, 1024])
def test_a_configuration_for_any_number_of_experts(experts: int) -> None:
    kernel = find_kernel("gather_gemm")
    for rows in (1, 512, 65536):
        for source in ("gathered", "packed"):
            problem = GatherGemmProblem(1024, 2048, num_groups=experts, source=source, recipe="fp8xfp4")
            config = kernel.choose(problem, Target.typical("sm_100a"), rows)
            assert isinstance(config, Sm100GemmConfig) and config.num_stages >= 4
            assert kernel.dynamic_smem(config) <= config.arch.smem_bytes


@pytest.mark.parametrize(
    ("recipe", "rows", "tile"),
    [
        ("fp8xfp4", 2, (32, 1, 1)),
        ("fp8xfp4", 32, (64, 1, 1)),
        ("fp8xfp4", 512, (192, 1, 2)),
        ("mxfp8xmxfp8", 128, (192, 1, 1)),
        ("mxfp8xmxfp8", 512, (192, 2, 2)),
        ("bf16xbf16", 2, (32, 1, 1)),
        ("bf16xbf16", 512, (256, 2, 2)),
    ],
)
def test_many_rows_of_an_expert_are_shared(recipe: str, rows: int, tile: tuple[int, int, int]) -> None:
    """Where weights come from memory once however they are multiplied, a plain tile stays: DeepSeek-V3's Linear1."""
    output = "bf16" if recipe == PLAIN else "e4m3"
    problem = GatherGemmProblem(4096, 7168, num_groups=256, recipe=recipe, gate_up="gate_first", output=output)
    config = choose(problem, Target.typical("sm_100a"), rows * 256)
    assert (config.block_m, config.consumers, config.pairs) == tile and config.dynamic_schedule == (config.pairs == 2)
    odd = choose(problem, Target.typical("sm_100a", 146), rows * 256)
    assert odd.pairs == 1  # 146 CTAs make no clusters of four
    assert choose(problem, Target.typical("sm_100a"), rows * 256, pairs=1, block_m=64).block_m == 64


def test_the_tile_that_is_chosen_for_many_rows_is_exact() -> None:
    problem = GatherGemmProblem(512, 256, num_groups=1, recipe="fp8xfp4", result="blocked")
    config = choose(problem, Target.typical("sm_100a", 4), 300)
    assert config.pairs == 2
    case = gather_case(problem, (300,))
    ((d, expected, _),) = case.compared(exact=True).values()
    assert not simulate_gemm(artifact(config), case.tensors, launches=2).findings
    assert torch.equal(d, expected)


def test_bad_configurations_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"problem\.recipe = 'fp8xfp8': must be fp8xfp4 or mxf4xmxf4 or mxfp8xmxfp8 or nvfp4xnvfp4 or bf16xbf16 for sm_100a",
    ):
        Sm100GemmConfig(GatherGemmProblem(256, 256, num_groups=2), 64)
    with pytest.raises(ConfigError, match=r"consumers = 2: must be 1 but over the rows of experts"):
        Sm100GemmConfig(GemmProblem(256, 256, recipe="fp8xfp4"), 64, consumers=2)
    with pytest.raises(
        ConfigError, match=r"m = 4194304: must be at most 2088928 with block_m = 32, whose row blocks are counted in 16 bits"
    ):
        choose(GatherGemmProblem(256, 256, num_groups=256, recipe="fp8xfp4"), Target.typical("sm_100a"), 1 << 22, block_m=32)
    with pytest.raises(ConfigError, match=r"m = 2088929: must be at most 2088928 with block_m = 32"):
        few = choose(GatherGemmProblem(256, 256, num_groups=256, recipe="fp8xfp4"), Target.typical("sm_100a"), 64, block_m=32)
        find_kernel("gather_gemm").parameters(few, {"m": 2088929})
    with pytest.raises(ProblemError, match="output = 'e4m3': must be e2m1 of gate and up"):
        GatherGemmProblem(256, 256, gate_up="gate_first", output="e4m3", recipe="mxf4xmxf4")
    with pytest.raises(ConfigError, match=r"block_m = 96: must be one of \[32, 64, 128, 192, 256\]"):
        replace(WIDE, block_m=96)
    with pytest.raises(ConfigError, match="block_m = 256: must be at most 192 with consumers = 2: tensor memory has 512 columns"):
        replace(WIDE, block_m=256, consumers=2, num_stages=0)
    with pytest.raises(ConfigError, match="consumers = 3: must be 1 or 2"):
        replace(WIDE, consumers=3)
    with pytest.raises(ProblemError, match="output = 'e4m3': must be e2m1 of gate and up"):
        GatherGemmProblem(512, 256, gate_up="up_first", output="e4m3", recipe="nvfp4xnvfp4")
    with pytest.raises(ProblemError, match="output = 'e2m1': must be bf16 without gate_up"):
        GatherGemmProblem(512, 256, output="e2m1", recipe="nvfp4xnvfp4")
    with pytest.raises(ConfigError, match="num_sms = 6: must be a positive multiple of 4"):
        replace(WIDE, pairs=2, num_sms=6)
    with pytest.raises(ConfigError, match="pairs = 4: must be 1 or 2"):
        replace(WIDE, pairs=4)
    with pytest.raises(ConfigError, match=r"problem\.n = 768: must be a multiple of 512 for gate and up with consumers = 2 and pairs = 1"):
        Sm100GemmConfig(GatherGemmProblem(768, 256, gate_up="gate_first", output="e4m3", recipe="fp8xfp4"), 64, consumers=2)


def test_runs_have_names_of_their_own() -> None:
    assert len(PAIR_GATHER_BY_NAME) == len(PAIR_GATHER_RUNS) and set(PAIR_GATHER_BY_NAME) > SAMPLE
