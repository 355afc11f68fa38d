"""Weights in each architecture's order, under DeepGEMM's names."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from megamoe_dsl.arch import SM90, SM100
from megamoe_dsl.cases import random_weights
from megamoe_dsl.compat.deep_gemm import (
    transform_sf_into_required_layout,
    transform_weights_for_mega_moe,
    transform_weights_for_mega_moe_sm90,
)
from megamoe_dsl.compat.deep_gemm.calls import _in_kernel_order
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import WEIGHT_NAMES, ExpertWeights, transform_weights
from megamoe_dsl.quant.weights import rows_of_tiles

FP8 = Problem(512, 256, 4, 2, max_tokens_per_rank=16, recipe="fp8xfp8")
FP4 = Problem(512, 256, 4, 2, max_tokens_per_rank=16)
Weights = tuple[torch.Tensor, torch.Tensor]


def fields(weights: object) -> list[torch.Tensor]:
    return [getattr(weights, name).view(torch.uint8) for name in WEIGHT_NAMES]


def fp4_for_deep_gemm(w: ExpertWeights) -> tuple[Weights, Weights]:
    """As vLLM makes them of a checkpoint: FP32 scales, then words."""
    pairs = []
    for codes, scales in ((w.fc1, w.fc1_sf), (w.fc2, w.fc2_sf)):
        floats = (scales.to(torch.int32) << 23).view(torch.float32)
        words = transform_sf_into_required_layout(floats, codes.shape[1], codes.shape[2] * 2, (1, 32), len(codes))
        pairs.append((codes.view(torch.int8), words))
    return pairs[0], pairs[1]


def test_sm90_is_the_layers_order() -> None:
    """Biases follow their rows."""
    problem = replace(FP8, biases=True)
    w = random_weights(problem, 0, 1)
    assert w.fc1_bias is not None and w.fc2_bias is not None
    by_columns = [one.mT.contiguous().mT for one in (w.fc1_sf, w.fc2_sf)]
    l1, l2 = transform_weights_for_mega_moe_sm90((w.fc1, by_columns[0], w.fc1_bias), (w.fc2, by_columns[1], w.fc2_bias))
    found, want = _in_kernel_order(problem, SM90, l1, l2), transform_weights(problem, SM90, w)
    assert found.fc1_bias is not None and want.fc1_bias is not None and torch.equal(found.fc1_bias, want.fc1_bias)
    assert found.fc2_bias is w.fc2_bias and all(torch.equal(a, b) for a, b in zip(fields(found), fields(want), strict=True))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float8_e8m0fnu])
def test_sm90_takes_scales_of_4_bits_as_they_are_published(dtype: torch.dtype) -> None:
    """As bytes, or as words of any strides; biases follow their rows."""
    problem = replace(FP4, recipe="fp8xmxfp4", biases=True)
    w = random_weights(problem, 0, 1)
    assert w.fc1_bias is not None and w.fc2_bias is not None
    scales = [one[1] for one in fp4_for_deep_gemm(w)] if dtype == torch.int32 else [one.view(dtype) for one in (w.fc1_sf, w.fc2_sf)]
    l1, l2 = (w.fc1.view(torch.int8), scales[0], w.fc1_bias), (w.fc2, scales[1], w.fc2_bias)
    found, want = _in_kernel_order(problem, SM90, *transform_weights_for_mega_moe_sm90(l1, l2)), transform_weights(problem, SM90, w)
    assert found.fc1_bias is not None and want.fc1_bias is not None and torch.equal(found.fc1_bias, want.fc1_bias)
    assert found.fc2_bias is w.fc2_bias and all(torch.equal(a, b) for a, b in zip(fields(found), fields(want), strict=True))


def test_sm100_has_biases_and_eight_bits() -> None:
    """Words in any strides, as long as they are words."""
    problem = replace(FP8, recipe="mxfp8xmxfp8")
    w = random_weights(problem, 0, 1)
    words = [one.view(torch.int32) for one in (w.fc1_sf, w.fc2_sf)]
    l1, l2 = transform_weights_for_mega_moe((w.fc1, words[0]), (w.fc2, words[1]), mma_type="fp8xfp8")
    found, want = _in_kernel_order(problem, SM100, l1, l2), transform_weights(problem, SM100, w)
    assert all(torch.equal(a, b) for a, b in zip(fields(found), fields(want), strict=True))
    biased = random_weights(replace(FP4, biases=True), 0, 1)
    (codes, sf), (codes2, sf2) = fp4_for_deep_gemm(biased)
    assert biased.fc1_bias is not None and biased.fc2_bias is not None
    l1, l2 = transform_weights_for_mega_moe((codes, sf, biased.fc1_bias), (codes2, sf2, biased.fc2_bias))
    want = transform_weights(replace(FP4, biases=True), SM100, biased)
    assert torch.equal(l1[2], want.fc1_bias) and l2[2] is biased.fc2_bias
    for wrong in (words[0].view(torch.float32), words[0][0]):
        with pytest.raises(ProblemError, match=r"weight scales = .*: must be int32 \[E, rows, K/128\], four UE8M0 a word"):
            transform_weights_for_mega_moe((w.fc1, wrong), (w.fc2, words[1]), mma_type="fp8xfp8")
    for which in range(2):
        codes = [w.fc1, w.fc2]
        codes[which] = codes[which].bfloat16()
        with pytest.raises(ProblemError, match=rf"l{which + 1}_weights\[0\].dtype = torch.bfloat16: must be torch.float8_e4m3fn"):
            transform_weights_for_mega_moe((codes[0], words[0]), (codes[1], words[1]), mma_type="fp8xfp8")
    with pytest.raises(ProblemError, match="activation = 'gelu'"):
        transform_weights_for_mega_moe((w.fc1, words[0]), (w.fc2, words[1]), "gelu", "fp8xfp8")


def test_a_recipe_of_three_numbers_is_that_of_a_and_of_b() -> None:
    """Rows of a scale of A, of one of B, and channels; weights are of one group or of several, or of none."""
    sf = 2.0 ** torch.randint(-9, 9, (3, 8, 16))
    want = transform_sf_into_required_layout(sf, 8, 512, (1, 32), 3)
    assert torch.equal(transform_sf_into_required_layout(sf, 8, 512, (128, 1, 32), 3, False), want)
    assert torch.equal(transform_sf_into_required_layout(sf, 8, 512, (1, 128, 32), 3, True), want)
    assert torch.equal(transform_sf_into_required_layout(sf, 8, 512, (128, 1, 32), 3), want)
    assert torch.equal(transform_sf_into_required_layout(sf[1], 8, 512, (1, 32)), want[1])
    blocks = torch.rand(5, 3).T  # of rows and channels that fill no whole ones
    found = transform_sf_into_required_layout(blocks, 257, 513, (128, 128), disable_ue8m0_cast=True)
    assert torch.equal(found, blocks) and found.is_contiguous()
    for recipe, uncast in (((128, 128), False), ((1, 32), True), ((128, 1, 32), False)):
        with pytest.raises(ProblemError, match=r"recipe = .*: must be \(1, 32\), or \(128, 128\) with disable_ue8m0_cast"):
            transform_sf_into_required_layout(sf, 8, 512, recipe, 3, True, uncast)
    with pytest.raises(ProblemError, match="psum_layout = 'given': must be None"):
        transform_sf_into_required_layout(sf, 8, 512, (1, 32), 3, psum_layout=sf)


def test_sm100_is_the_layers_order() -> None:
    w = random_weights(FP4, 0, 1)
    l1, l2 = transform_weights_for_mega_moe(*fp4_for_deep_gemm(w))
    assert (l1[0].shape, l1[1].shape, l1[1].stride()) == ((4, 4, 4, 128, 64), (4, 512, 4), (2048, 1, 512))
    found = _in_kernel_order(FP4, SM100, l1, l2)
    want = transform_weights(FP4, SM100, w)
    assert all(torch.equal(a, b) for a, b in zip(fields(found), fields(want), strict=True))
    assert found.fc1_sf.data_ptr() == l1[1].data_ptr()


def test_sm100_has_deep_gemms_rows_in_tiles() -> None:
    """Rows of 8 gates and 8 ups, and scale rows m of 128 at 4 (m % 32) + m // 32: DeepGEMM's mega/__init__.py, done by hand; its shape is
    refused."""
    w = random_weights(FP4, 0, 1)
    (codes, words), (codes2, words2) = fp4_for_deep_gemm(w)
    order = torch.arange(512).view(2, 32, 8).transpose(0, 1).flatten()
    utccp = torch.arange(512).view(4, 4, 32).transpose(1, 2).flatten()

    def major(rows: torch.Tensor) -> torch.Tensor:
        return rows.transpose(1, 2).contiguous().transpose(1, 2)

    by_hand = (codes[:, order], major(words[:, order][:, utccp])), (codes2, major(words2[:, utccp]))
    ours = transform_weights_for_mega_moe((codes, words), (codes2, words2))
    for (a, a_sf), (b, b_sf) in zip(by_hand, ours, strict=True):
        assert torch.equal(a.view(torch.uint8), rows_of_tiles(b)) and torch.equal(a_sf, b_sf) and a_sf.stride() == b_sf.stride()
    with pytest.raises(ProblemError, match=r"l1_weights\[0\] = .*int8 \(4, 512, 256\).*: must be torch.uint8 \(4, 4, 4, 128, 64\), contig"):
        _in_kernel_order(FP4, SM100, *by_hand)


def test_scales_that_are_refused() -> None:
    with pytest.raises(ProblemError, match=r"sf = 1\.5: must be powers of two"):
        transform_sf_into_required_layout(torch.full((1, 128, 4), 1.5), 128, 128, (1, 32), 1)
    with pytest.raises(ProblemError, match="recipe"):
        transform_sf_into_required_layout(torch.ones(1, 128, 4), 128, 128, (1, 16), 1)
    with pytest.raises(ProblemError, match=r"sf = .*: must be torch.float32 \(1, 128, 4\)"):
        transform_sf_into_required_layout(torch.ones(1, 128, 3), 128, 128, (1, 32), 1)
    blocks = torch.rand(2, 4, 3)
    assert torch.equal(transform_sf_into_required_layout(blocks, 512, 384, (128, 128), 2, disable_ue8m0_cast=True), blocks)
    w = random_weights(FP8, 0, 1)
    with pytest.raises(ProblemError, match="takes weights in E2M1"):
        transform_weights_for_mega_moe((w.fc1, w.fc1_sf), (w.fc2, w.fc2_sf))
    (l1, fc1_sf), l2 = transform_weights_for_mega_moe(*fp4_for_deep_gemm(random_weights(FP4, 0, 1)))
    with pytest.raises(ProblemError, match="M-major"):
        _in_kernel_order(FP4, SM100, (l1, fc1_sf.contiguous()), l2)


@pytest.mark.parametrize("value", [0.0, -0.0, float("inf"), float("-inf"), float("nan"), -2.0, 3.0, 2.0**-128, 2.0**-127 + 2.0**-149])
def test_what_is_no_power_of_two_of_ue8m0_is_refused(value: float) -> None:
    sf = torch.ones(1, 128, 4)
    sf[0, 5, 2] = value
    with pytest.raises(ProblemError, match="powers of two from") as caught:
        transform_sf_into_required_layout(sf, 128, 128, (1, 32), 1)
    assert caught.value.field == "sf" and str(caught.value.value) == str(sf[0, 5, 2].item())


def test_the_ends_of_ue8m0() -> None:
    sf = torch.tensor([2.0**-127, 2.0**-126, 1.0, 2.0**127]).expand(1, 4, 4)
    words = transform_sf_into_required_layout(sf, 4, 128, (1, 32), 1)
    assert words.contiguous().view(torch.uint8)[0].tolist() == [[0, 1, 127, 254]] * 4


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_an_fp32_scale_that_no_quantization_gives_is_refused(value: float) -> None:
    sf = torch.ones(1, 2, 2)
    sf[0, 1, 1] = value
    with pytest.raises(ProblemError, match=f"sf = {value}: must be finite and not negative"):
        transform_sf_into_required_layout(sf, 256, 256, (128, 128), 1, disable_ue8m0_cast=True)


def test_words_are_m_major() -> None:
    words = transform_sf_into_required_layout(torch.ones(2, 8, 16), 8, 512, (1, 32), 2)
    assert words.shape == (2, 8, 4) and words.stride() == (32, 1, 8)
