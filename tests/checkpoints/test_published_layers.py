"""A layer through everything: files as models publish them, ranks that each load their share, the compiled kernel, the reference's bits."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from published_files import FP4, LAYER, Tensors, all_experts, deepseek_v3, deepseek_v4, deepseek_v4_fp8, gpt_oss, qwen3_moe, write

import ptx_of
from expert_reading import read_experts
from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.cases import random_case, random_weights
from megamoe_dsl.checkpoints import PublishedExperts, load_experts
from megamoe_dsl.checkpoints.write import convert_checkpoint
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import WEIGHT_NAMES, ExpertWeights, dequantize_e2m1
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.simulated import SimulatedMoE
from megamoe_dsl.target import Target
from sweep import rarely

RANKS = (1, 2, 4, 8)
TOKENS = (3, 0, 2, 1, 0, 1, 0, 2)
HOPPER = Target(SM90, 2)


def in_bf16(w: ExpertWeights) -> Tensors:
    """E2M1 values under a scale are BF16 numbers."""
    fc1, fc2 = (dequantize_e2m1(codes, scales).bfloat16() for codes, scales in ((w.fc1, w.fc1_sf), (w.fc2, w.fc2_sf)))
    return qwen3_moe(fc1, fc2)


@dataclass(frozen=True)
class Published:
    """How a model's weights are stored, by which writer, and the recipe that computes with them."""

    stored: str
    tensors: Callable[[ExpertWeights], Tensors]
    recipe: str
    expand: bool = False


PUBLISHED = {
    "deepseek-v4": Published("fp8xmxfp4", deepseek_v4, "fp8xmxfp4"),
    "deepseek-v4 in FP8": Published("fp8xmxfp4", deepseek_v4, "fp8xfp8", expand=True),
    "deepseek-v4-fp8": Published("fp8xfp8", deepseek_v4_fp8, "fp8xfp8"),
    "deepseek-v3": Published("fp8xfp8", deepseek_v3, "fp8xfp8"),
    "gpt-oss": Published("fp8xmxfp4", gpt_oss, "fp8xmxfp4"),
    "qwen3-moe": Published("fp8xmxfp4", in_bf16, "fp8xmxfp4"),
}
SAMPLE = {("deepseek-v4", 2), ("qwen3-moe", 2), ("gpt-oss", 8), ("deepseek-v3", 4), ("deepseek-v4-fp8", 4), ("deepseek-v4 in FP8", 1)}
"""Of the suite: two layouts for a kernel where they can be."""


@cache
def kernel(problem: Problem) -> Artifact:
    return ptx_of.artifact(find_kernel("mega_moe").choose(problem, HOPPER, max(TOKENS)))


@pytest.mark.parametrize(("name", "ranks"), [one if one in SAMPLE else rarely(*one) for one in product(PUBLISHED, RANKS)])
def test_the_kernel_gives_the_references_result(tmp_path: Path, name: str, ranks: int) -> None:
    published = PUBLISHED[name]
    case = random_case(Problem(256, 128, 8, 2, ranks, 16, recipe=published.stored), TOKENS[:ranks], 0)
    folder = write(tmp_path, published.tensors(all_experts(case.weights)))
    problem = replace(case.problem, recipe=published.recipe)
    moe = SimulatedMoE(kernel(problem), [random_weights(problem, rank, 7) for rank in range(ranks)])
    for rank, buffers in enumerate(moe.ranks):
        load_experts(buffers, folder, LAYER, rank, expand=published.expand)
    y, report = moe([Inputs(*one) for one in zip(case.x, case.x_sf, case.topk_idx, case.topk_weights, strict=True)])
    assert not report.findings
    assert all(torch.equal(found, want) for found, want in zip(y, case.reference().y, strict=True)) and any(one.any() for one in y)


def same(found: ExpertWeights, want: ExpertWeights) -> bool:
    return all(torch.equal(getattr(found, name).view(torch.uint8), getattr(want, name).view(torch.uint8)) for name in WEIGHT_NAMES)


@given(st.sampled_from(sorted(FP4)), st.sampled_from(RANKS), st.integers(1, 3), st.integers(2, 10), st.integers(2, 6), st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_any_ranks_share_of_any_layer(layout: str, ranks: int, share: int, hidden: int, intermediate: int, files: int) -> None:
    """Dealt over any number of files, with and without their index; what `convert` makes of it is the same."""
    problem = Problem(32 * hidden, 32 * intermediate, ranks * share, 1, ranks, 1, recipe="fp8xmxfp4")
    weights = [random_weights(problem, rank, files) for rank in range(ranks)]
    with tempfile.TemporaryDirectory() as place:
        folder = write(Path(place, "published"), FP4[layout](all_experts(weights)), files, index=files % 2 == 0)
        convert_checkpoint(folder, Path(place, "own"), problem.recipe)
        assert PublishedExperts.of(Path(place, "own"), LAYER).layout.name == "megamoe-e2m1"
        for rank, want in enumerate(weights):
            assert same(read_experts(problem, folder, LAYER, rank), want)
            assert same(read_experts(problem, Path(place, "own"), LAYER, rank), want)
