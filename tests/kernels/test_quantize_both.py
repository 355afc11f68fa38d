"""Rows quantized both ways in the simulator, and the public calls' errors: codes and scales are the reference's to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from kernel_faults import gone
from sm90_faults import at

from megamoe_dsl import ProblemError, k_grouped_gemm, padded_rows, quantize_both
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.expert_routing.config import TokensConfig
from megamoe_dsl.kernels.expert_routing.problem import QuantizeProblem, QuantizeWeightsProblem
from megamoe_dsl.quant import quantize
from megamoe_dsl.runtime import k_grouped_gemm as operators
from megamoe_dsl.runtime.gemm_scales import scale_words
from megamoe_dsl.runtime.simulated import memory_of
from megamoe_dsl.sim import SimError
from megamoe_dsl.sim.report import Report
from ptx_of import artifact
from simulated_experts import simulate_launches
from simulated_stages import simulate_stages

BARRIER = r"bar\.sync\s+0;"
E4M3 = torch.float8_e4m3fn
HIDDEN, ROWS, TOKENS = 256, 384, 200


Quantized = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""By the name of an argument: what a launch writes, and what that is to be."""


def simulated(
    x: torch.Tensor, sources: torch.Tensor | None, problem: QuantizeProblem, arch: str, place: int | None = None
) -> tuple[Report, Quantized]:
    """What a launch of two CTAs finds and writes; without the barrier at a place of the PTX."""
    taken = x if sources is None else torch.where((sources >= 0)[:, None], x[sources.clamp(min=0).long()], 0)
    matrices, found = taken.unflatten(0, (-1, problem.matrix_rows or ROWS)), Quantized()
    for wanted, suffix, values in ((problem.rows, "", matrices), (problem.columns, "_t", matrices.mT.contiguous())):
        if wanted:
            codes, sf = quantize(values, problem.formats.activations)
            expected = {"codes": codes, "scales": sf.mT.contiguous() if problem.formats.promoted else scale_words(sf)}
            found |= {f"{name}{suffix}": (torch.zeros_like(one), one) for name, one in expected.items()}
    read, written = {"x": x} if sources is None else {"x": x, "sources": sources}, {name: one for name, (one, _) in found.items()}
    given = {name: tensor.data_ptr() for name, tensor in {**read, **written}.items()}
    kernel = artifact(TokensConfig(problem, 2, arch_name=arch))
    if place is not None:
        kernel = replace(kernel, ptx=at("a barrier", BARRIER, place, gone, ()).apply(kernel.ptx))
    absent = dict.fromkeys(("sources", "codes", "scales", "codes_t", "scales_t"), 0)
    return simulate_launches(kernel, memory_of(read, written), {**absent, **given, "num_rows": ROWS}), found


FP8, MXFP8 = {"recipe": "fp8xfp8"}, {"recipe": "mxfp8xmxfp8"}
CASES = {
    "rows": FP8,
    "gathered columns": {**FP8, "gathered": True, "rows": False},
    "mxfp8 gathered": {**MXFP8, "gathered": True},
    "mxfp8 matrices": {**MXFP8, "matrix_rows": 128},
    "mxfp8 matrices as they lie": {**MXFP8, "matrix_rows": 128, "columns": False},
    "mxfp8 matrices transposed": {**MXFP8, "matrix_rows": 128, "rows": False},
}
ARCH = {"fp8xfp8": "sm_90a", "mxfp8xmxfp8": "sm_100a"}


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_codes_and_scales_are_the_references(fields: dict[str, Any]) -> None:
    """Rows and channels of zeros, and far apart; words of MXFP8 lie in the order of UTCCP."""
    generator, problem = torch.Generator().manual_seed(0), QuantizeProblem(HIDDEN, **fields)
    x = torch.randn(TOKENS if problem.gathered else ROWS, HIDDEN, generator=generator).bfloat16()
    x[3] *= 100
    x[:, 5], x[7] = 0, 0
    sources = torch.randint(-1, TOKENS, (ROWS,), generator=generator, dtype=torch.int32)
    report, written = simulated(x, sources if problem.gathered else None, problem, ARCH[problem.recipe])
    assert not report.findings
    assert all(torch.equal(found.view(torch.uint8), expected.view(torch.uint8)) for found, expected in written.values())


@pytest.mark.parametrize("recipe", ARCH)
def test_every_barrier_is_needed(recipe: str) -> None:
    """Each of a block's two is between what some threads write and others read."""
    for place in range(2):
        try:
            report, _ = simulated(torch.ones(ROWS, HIDDEN).bfloat16(), None, QuantizeProblem(HIDDEN, recipe=recipe), ARCH[recipe], place)
            assert report.findings
        except SimError as error:
            assert "read of uninitialized shared memory" in str(error)


def test_a_problem_that_no_kernel_has_is_named() -> None:
    with pytest.raises(ProblemError, match="columns = False: must be True without rows"):
        QuantizeProblem(HIDDEN, rows=False, columns=False)
    with pytest.raises(ProblemError, match="rows = 200: must be a multiple of 128"):
        QuantizeProblem(HIDDEN).check_rows(200, "rows")
    with pytest.raises(ConfigError, match=r"problem.recipe = 'mxfp8xmxfp8': must be fp8xfp8 .* for sm_90a"):
        TokensConfig(QuantizeProblem(HIDDEN, recipe="mxfp8xmxfp8"), 2)
    with pytest.raises(ConfigError, match=r"problem.recipe = 'fp8xfp8': must be fp8xfp4 .* for sm_100a"):
        TokensConfig(QuantizeWeightsProblem(256, 256), 2, arch_name="sm_100a")


def test_weights_have_gradients_in_mxfp8(monkeypatch: pytest.MonkeyPatch) -> None:
    """The public calls, on CPU tensors and in the simulator: rows of groups padded, one group without rows."""
    generator, ends = torch.Generator().manual_seed(2), torch.tensor([70, 70, 133], dtype=torch.int32)
    x, dy = (torch.randn(133, hidden, generator=generator).bfloat16() for hidden in (128, 256))
    padded = padded_rows(ends, 133)

    def gradients() -> torch.Tensor:
        sides = [quantize_both(one, padded.sources, rows=rows, recipe="mxfp8xmxfp8") for one, rows in ((dy, True), (x, False))]
        return k_grouped_gemm(*(tensor for side in sides for tensor in (side.codes_t, side.scales_t)), padded.ends)

    expected = gradients()
    exact = torch.stack([dy[a:b].double().T @ x[a:b].double() for a, b in ((0, 70), (70, 70), (70, 133))])
    assert (expected.double() - exact).norm() < 0.05 * exact.norm()
    assert len(ran := simulate_stages(monkeypatch, "sm_100a")) == 0
    assert torch.allclose(gradients(), expected, rtol=2.0**-7, atol=0.0) and len(ran) == 3


@pytest.mark.parametrize("recipe", ARCH)
def test_codes_along_channels_are_there_unless_they_are_not_wanted(recipe: str) -> None:
    x = torch.randn(128, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    both, alone = quantize_both(x, recipe=recipe), quantize_both(x, rows=False, recipe=recipe)
    assert both.codes is not None and both.codes.shape == (128, 256) and alone.codes is alone.scales is None
    assert torch.equal(both.codes_t.view(torch.uint8), alone.codes_t.view(torch.uint8)) and torch.equal(both.scales_t, alone.scales_t)


ROWS_OF_TWO = torch.zeros(128, 256, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": torch.zeros(128, 256)}, "x.dtype = torch.float32"),
        ({"x": torch.zeros(128, 192, dtype=torch.bfloat16)}, "hidden = 192: must be a multiple of 128"),
        ({"x": ROWS_OF_TWO[:100]}, r"x.shape\[0\] = 100: must be a multiple of 128"),
        ({"x": ROWS_OF_TWO, "sources": torch.zeros(128)}, "sources.dtype = torch.float32"),
        ({"x": ROWS_OF_TWO, "sources": torch.zeros(64, dtype=torch.int32)}, r"sources.shape\[0\] = 64: must be a multiple of 128"),
        (
            {"x": ROWS_OF_TWO, "sources": torch.full((128,), 128, dtype=torch.int32)},
            r"sources = \[128, 128\]: must be -1, or tokens below 128",
        ),
        ({"x": ROWS_OF_TWO, "rows": 1}, "rows = 1: must be True or False"),
        ({"x": None}, "x = None: must be a tensor"),
        ({"x": ROWS_OF_TWO.clone().requires_grad_()}, "x.requires_grad = True"),
    ],
)
def test_rows_that_do_not_fit_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        quantize_both(**given)


NO_COLUMNS = {"left": (64, 0), "left_sf": (0, 64), "right": (96, 0), "right_sf": (0, 96)}
OPERANDS = {
    "left": torch.zeros(64, 256).to(E4M3),
    "left_sf": torch.ones(2, 64),
    "right": torch.zeros(96, 256).to(E4M3),
    "right_sf": torch.ones(2, 96),
    "ends": torch.tensor([128, 256], dtype=torch.int32),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left": torch.zeros(48, 256).to(E4M3), "left_sf": torch.ones(2, 48)}, "n = 48: must be a multiple of 32"),
        ({"left": torch.zeros(64, 256)}, "left.dtype = torch.float32"),
        ({"right": torch.zeros(96, 128).to(E4M3)}, "right.shape"),
        ({"right_sf": torch.ones(96, 2)}, "right_sf.shape"),
        ({"left": torch.zeros(64, 200).to(E4M3)}, r"left.shape\[1\] = 200: must be a multiple of 128"),
        ({"left": torch.zeros(64, 144).to(E4M3)}, r"left.shape\[1\] = 144: must be a multiple of 128"),
        ({"ends": torch.tensor([128, 256])}, "ends.dtype = torch.int64"),
        ({"ends": torch.tensor([100, 256], dtype=torch.int32)}, r"ends = \[100, 256\]: must be multiples of 128 in ascending order"),
        ({"ends": torch.tensor([256, 128], dtype=torch.int32)}, r"ends = \[256, 128\]: must be"),
        ({"ends": torch.tensor([128, 384], dtype=torch.int32)}, r"at most left.shape\[1\] = 256"),
        ({"out": torch.zeros(2, 64, 95)}, "out.shape"),
        ({"out": torch.zeros(2, 64, 96, dtype=torch.float16)}, "out.dtype = torch.float16"),
        ({"out_dtype": torch.float16}, "out.dtype = torch.float16"),
        ({"left": None}, "left = None: must be a tensor"),
        ({"left": torch.zeros(64).to(E4M3)}, "left.shape = \\(64,\\): must be"),
    ],
)
def test_operands_that_do_not_fit_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        k_grouped_gemm(**{**OPERANDS, **change})


@pytest.fixture
def empty_is_nan() -> Iterator[None]:
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode("default")


@pytest.mark.usefixtures("empty_is_nan")
def test_what_no_sum_reaches_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without columns nothing is launched; FP32 sums are added to what is there."""
    monkeypatch.setattr(operators, "check_current", lambda *_: None)
    monkeypatch.setattr(operators, "run_gemm", lambda *_: None)
    assert not k_grouped_gemm(**OPERANDS, out_dtype=torch.float32).any()
    no_columns = {name: torch.empty(*size).to(E4M3 if len(name) < 6 else torch.float32) for name, size in NO_COLUMNS.items()}
    given = torch.ones(2, 64, 96)
    for out in (given, given.bfloat16()):
        assert k_grouped_gemm(**OPERANDS | no_columns, out=out) is out
        assert torch.equal(out, given if out is given else torch.zeros_like(out))
