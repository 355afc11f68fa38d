"""The PTX of the GEMMs of a backward pass in the simulator: to the bit of the reference on any data, without a finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from gather_runs import BF16
from gradient_runs import GRADIENT_BY_NAME, VARLEN_K_BY_NAME, VarlenKRun
from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.blocks.gemm.problem import GatherGemmProblem, GemmProblem, VarlenKProblem
from megamoe_dsl.blocks.gemm.sm100.config import Sm100GemmConfig
from megamoe_dsl.cli.app import app
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernel_cases.gather import gather_case
from megamoe_dsl.kernel_cases.gemm import gemm_case
from megamoe_dsl.kernel_cases.gradients import gradient_case, varlen_k_case
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.registry import choose
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.simulated import simulate_gemm
from megamoe_dsl.target import Target
from ptx_of import artifact
from sweep import rarely, sample


@sample("left", "right-192-one-box", "left-f32-pairs", "right-aligned", "fp8")
@pytest.mark.parametrize("name", VARLEN_K_BY_NAME)
def test_sums_over_rows_are_the_tensor_cores(name: str) -> None:
    """Of groups without rows zeros, or what was there; NaNs behind the last group's rows do not spread."""
    run = VARLEN_K_BY_NAME[name]
    case = run.case(exact=False)
    ((d, expected, _),) = case.compared(exact=False).values()
    assert not simulate_gemm(artifact(run.config), case.tensors, launches=1 if run.config.problem.accumulate else 2).findings
    assert torch.equal(d, expected)


def assert_tails_are_exact(config: Any, counts: Sequence[int]) -> None:
    """Sums of every other group; rows of the groups between, whose numbers are infinite, stay out."""
    case = varlen_k_case(config.problem, counts)
    t, last = case.tensors, len(case.tensors.a) - 1
    assert t.sources is not None and t.groups is not None
    t.a[last] = torch.inf
    t.sources.clamp_(max=last - 1)
    for start, end in zip(t.groups[::2].tolist(), t.groups[1::2].tolist(), strict=True):
        t.b[start:end], t.sources[start:end] = torch.inf, last
    ((d, expected, _),) = case.compared(exact=True).values()
    assert not simulate_gemm(artifact(config), case.tensors, race=False).findings
    assert torch.equal(d[::2], expected[::2])


@pytest.mark.parametrize("gathered", ["left", rarely("right")])
@pytest.mark.parametrize(
    "counts", [tuple(range(32)), *(rarely(tuple(range(first, first + 32))) for first in (32, 64)), tuple(range(96, 128))]
)
def test_any_number_of_rows(gathered: str, counts: tuple[int, ...]) -> None:
    """Tails of 0 to 127 rows; rows of the next group, whose numbers are infinite, stay out."""
    config = VarlenKRun("tails", counts, 64, 64, {"gathered": gathered}, {"block_n": 64, "num_sms": 4}).config
    assert_tails_are_exact(config, counts)


def test_nothing_is_read_behind_the_last_row() -> None:
    """The last row of B ends its memory, and half of the tile's columns lie behind it."""
    run = VarlenKRun("end", (70,), 64, 64, fields={"block_n": 128, "num_sms": 1})
    case = varlen_k_case(run.config.problem, run.counts)
    t, rows = case.tensors, sum(run.counts)
    assert t.sources is not None
    cut = replace(case, tensors=replace(t, b=t.b[:rows].clone(), sources=t.sources[:rows].clone()))
    ((d, expected, _),) = cut.compared(exact=True).values()
    assert not simulate_gemm(artifact(run.config), cut.tensors).findings
    assert torch.equal(d, expected)


def test_sources_that_are_not_there_are_those_that_are() -> None:
    run = VARLEN_K_BY_NAME["left"]
    case = varlen_k_case(run.config.problem, run.counts)
    assert case.tensors.sources is not None
    case.tensors.sources[:3] = torch.tensor([-5, len(case.tensors.a), 1 << 30], dtype=torch.int32)
    clamped = replace(case.tensors, sources=case.tensors.sources.clamp(0, len(case.tensors.a) - 1))
    ((_, expected, _),) = replace(case, tensors=clamped).compared(exact=True).values()
    assert not simulate_gemm(artifact(run.config), case.tensors).findings
    assert torch.equal(case.tensors.d, expected)


@pytest.mark.parametrize(("n", "k", "block_n", "cluster", "half_tiles"), [(416, 160, 256, 2, True), rarely(208, 128, 128, 1, False)])
def test_a_transposed_b(n: int, k: int, block_n: int, cluster: int, half_tiles: bool) -> None:
    """Columns beyond the last, and K of half a stage; of pairs with the same columns, the same rows, and neither; last tiles of 2 rows."""
    counts, fields = (70, 0, 130, 300), {"num_sms": 2 * cluster, "cluster": cluster, "dynamic_schedule": True, "half_tiles": half_tiles}
    packed = GemmProblem(n, k, "packed", len(counts), transposed_b=True, **BF16)
    gathered = GatherGemmProblem(n, k, num_groups=len(counts), transposed_b=True, **BF16)
    for case in (gemm_case(packed, counts, exact=False), gather_case(gathered, counts, exact=False)):
        ((d, expected, _),) = case.compared(exact=False).values()
        assert not simulate_gemm(artifact(GemmConfig(case.problem, 128, block_n, **fields)), case.tensors).findings
        assert torch.equal(d, expected)


@sample("swigluoai-interleaved-256", "silu-up_first-128")
@pytest.mark.parametrize("name", GRADIENT_BY_NAME)
def test_gradients_of_gate_and_up(name: str) -> None:
    run = GRADIENT_BY_NAME[name]
    case = run.case(exact=False)
    compared = case.compared(exact=False)
    assert not simulate_gemm(artifact(run.config), case.tensors).findings
    for name, (found, low, high) in compared.items():
        assert ((low <= found) & (found <= high)).all(), name


def test_the_gradients_of_a_limited_activation_are_near() -> None:
    """The tangent is within a few ulp, of which BF16 shows few; half of the tile's columns are not there."""
    problem = GatherGemmProblem(128, 96, num_groups=1, transposed_b=True, gradient="gate_first", activation="situ", **BF16)
    case = gradient_case(problem, (70,), exact=False)
    expected = case.reference(case.raw()).rows
    assert not simulate_gemm(artifact(GemmConfig(problem, 128, 256, num_sms=1)), case.tensors).findings
    assert (case.tensors.d - expected).float().norm() < 1e-3 * expected.float().norm()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VarlenKProblem(128, 128, recipe="fp8xmxfp4"), "recipe = 'fp8xmxfp4': must be one of bf16xbf16, fp8xfp8"),
        (lambda: VarlenKProblem(128, 128, recipe="fp8xfp8"), "gathered = 'right': must be empty with fp8xfp8"),
        (lambda: VarlenKProblem(64, 64, gathered="both"), "gathered = 'both': must be one of left, right"),
        (lambda: VarlenKProblem(64, 64, output="f32"), "accumulate = False: must be True where the output is f32"),
        (lambda: VarlenKProblem(48, 64), "n = 48: must be a multiple of 32"),
        (lambda: VarlenKProblem(64, 64, biases="f32"), "biases = 'f32': must be empty"),
        (lambda: GemmProblem(64, 64, transposed_b=True, **BF16), "transposed_b = True: must be False but for a packed or masked problem"),
        (lambda: GatherGemmProblem(256, 128, gradient="up", **BF16), "gradient = 'up': must be one of gate_first"),
        (
            lambda: GatherGemmProblem(256, 128, gradient="up_first", gate_up="up_first", output="e4m3"),
            "gradient = 'up_first': must be empty but for packed",
        ),
    ],
)
def test_a_bad_problem_is_named(make: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        make()


IN_FP8 = VarlenKProblem(64, 64, recipe="fp8xfp8", gathered="")
TRANSPOSED = GemmProblem(256, 128, "packed", 2, transposed_b=True, **BF16)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GemmConfig(VarlenKProblem(64, 64), 128, 96), "block_n = 96: must be a multiple of 64"),
        (lambda: GemmConfig(VarlenKProblem(64, 64), 64, 128, warpgroups=1), "block_m = 64: must be 128"),
        (lambda: GemmConfig(VarlenKProblem(64, 128), 128, 128, cluster=2), "cluster = 2: must be 1 where rows of tiles make an odd number"),
        (lambda: GemmConfig(VarlenKProblem(256, 256), 128, 64, cluster=2), "cluster = 2: must be 1 where rows of tiles make an odd number"),
        (lambda: GemmConfig(IN_FP8, 128, 256), "k_in_flight = 1: must be such that all sums fit 232 registers"),
        (lambda: GemmConfig(IN_FP8, 128, 128, half_tiles=True), "half_tiles = True: must be False where K are the rows of groups"),
        (lambda: GemmConfig(TRANSPOSED, 16, 128, swap_ab=True), "swap_ab = True: must be False where rows of shared memory are K"),
        (lambda: GemmConfig(TRANSPOSED, 128, 96), "block_n = 96: must be a multiple of 64 for each warpgroup"),
        (lambda: GemmConfig(TRANSPOSED, 128, 192, half_tiles=True), "block_n = 192: must be a multiple of 64 for each warpgroup"),
        (lambda: GemmConfig(TRANSPOSED, 128, 64, cluster=2), "cluster = 2: must be 1 where rows of tiles make an odd number"),
        (
            lambda: Sm100GemmConfig(GemmProblem(256, 96, "packed", 2, transposed_b=True, **BF16), 128),
            "problem.k = 96: must be a multiple of 64",
        ),
    ],
)
def test_a_bad_configuration_is_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_sum_in_fp8_is_chosen_for_its_shape() -> None:
    target = Target.typical("sm_90a")
    chosen = [choose(VarlenKProblem(n, 768, "packed", 8, recipe="fp8xfp8", gathered=""), target, 4096) for n in (2048, 1920)]
    assert [(one.block_m, one.block_n, one.cluster) for one in chosen] == [(128, 128, 2), (128, 128, 1)]


def test_a_layers_backward_pass_is_chosen_for_its_shape() -> None:
    layer = ExpertLayer(2048, 768, 128, 8, recipe="bf16xbf16")
    chosen = [choose(one, Target.typical("sm_90a"), 4096) for one in layer.backward()]
    assert [(one.block_m, one.block_n) for one in chosen[1:]] == [(128, 256)] * 4
    assert [one.half_tiles for one in chosen] == [False, False, True, False, False]
    assert [one.problem.d_columns for one in chosen] == [1536, 1536, 2048, 2048, 768]


def test_the_command_simulates_them() -> None:
    fields = "n=64,k=64,num_groups=2"
    found = CliRunner().invoke(
        app, ["simulate", "--kernel", "varlen_k_gemm", "--recipe", "bf16xbf16", "--fields", fields, "--tokens", "70,3", "--sms", "1"]
    )
    assert found.exit_code == 0 and "every element equals the reference bit for bit" in found.output, found.output
