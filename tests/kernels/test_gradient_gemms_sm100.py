"""The PTX of the GEMMs of a backward pass on SM100 in the simulator: exact on exact data, in bounds on normal data, without a finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from test_gradient_gemms import assert_tails_are_exact

from gather_runs import BF16
from gradient_runs import PAIR_GRADIENT_BY_NAME, PAIR_VARLEN_K_BY_NAME, PairGradientRun, PairVarlenKRun
from megamoe_dsl.arch import SM100
from megamoe_dsl.blocks.gemm.problem import GatherGemmProblem, GemmProblem
from megamoe_dsl.blocks.gemm.sm100.config import Sm100GemmConfig
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernel_cases.gather import gather_case
from megamoe_dsl.kernel_cases.gemm import gemm_case
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.registry import choose
from megamoe_dsl.runtime.simulated import simulate_gemm
from megamoe_dsl.target import Target
from ptx_of import artifact
from sweep import rarely, sample


def check(config: Sm100GemmConfig, case: Any, exact: bool, launches: int = 1) -> None:
    compared = case.compared(exact=exact)
    assert not simulate_gemm(artifact(config), case.tensors, launches=launches).findings
    for name, (found, low, high) in compared.items():
        assert ((low <= found) & (found <= high)).all(), name


@sample("right", "left-f32-in-turn", "mxfp8")
@pytest.mark.parametrize("name", PAIR_VARLEN_K_BY_NAME)
def test_sums_over_rows_are_those_of_groups(name: str) -> None:
    """Of groups without rows zeros, or what was there; NaNs behind the last group's rows do not spread."""
    run: PairVarlenKRun = PAIR_VARLEN_K_BY_NAME[name]
    for exact in (True, False):
        check(run.config, run.case(exact=exact), exact, 1 if run.config.problem.accumulate else 2)


@pytest.mark.parametrize("gathered", ["left", rarely("right")])
@pytest.mark.parametrize("counts", [(1, 63, 64, 65, 127, 2), *(rarely(tuple(range(first, first + 32))) for first in (0, 32, 64, 96))])
def test_any_number_of_rows(gathered: str, counts: Sequence[int]) -> None:
    """Tails of 0 to 127 rows; rows of the next group, whose numbers are infinite, stay out."""
    config = PairVarlenKRun("tails", tuple(counts), 64, 64, {"gathered": gathered}).config
    assert_tails_are_exact(config, counts)


@pytest.mark.parametrize(("n", "k", "gathers"), [(416, 192, True), rarely(208, 128, False)])
def test_a_transposed_b(n: int, k: int, gathers: bool) -> None:
    """Columns beyond the last, and more than one stage."""
    counts, given = (70, 0, 130), {"transposed_b": True, **BF16}
    for exact in (True, False):
        case: Any
        if gathers:
            case = gather_case(GatherGemmProblem(n, k, num_groups=3, **given), counts, exact=exact, arch=SM100)
        else:
            case = gemm_case(GemmProblem(n, k, "packed", 3, **given), counts, exact=exact, arch=SM100)
        check(Sm100GemmConfig(case.problem, 64, num_sms=2, dynamic_schedule=True), case, exact)


@sample("silu-up_first-64", "swigluoai-interleaved-128", "mxfp8-up_first-128")
@pytest.mark.parametrize("name", PAIR_GRADIENT_BY_NAME)
def test_gradients_of_gate_and_up(name: str) -> None:
    run: PairGradientRun = PAIR_GRADIENT_BY_NAME[name]
    check(run.config, run.case(exact=False), False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PairVarlenKRun("", (1,), 64, 64, {}, {"block_m": 64}).config, r"block_m = 64: must be one of \[128, 256\]"),
        (lambda: PairVarlenKRun("", (1,), 64, 64, {}, {"consumers": 2}).config, "consumers = 2: must be 1 but over the rows of experts"),
    ],
)
def test_a_bad_configuration_is_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_layers_backward_pass_is_chosen_for_its_shape() -> None:
    layer = ExpertLayer(2048, 768, 128, 8, recipe="bf16xbf16")
    chosen = [choose(one, Target.typical("sm_100a"), 4096) for one in layer.backward()]
    assert [one.block_m for one in chosen[-2:]] == [256, 256]
    assert [one.problem.d_columns for one in chosen] == [1536, 1536, 2048, 2048, 768]
