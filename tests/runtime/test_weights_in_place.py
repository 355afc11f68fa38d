"""Weights that are loaded over others do not reach into the tensors that a user gave."""

from __future__ import annotations

import pickle

import pytest
import torch

from megamoe_dsl import Target, choose, random_inputs
from megamoe_dsl.cases import random_weights
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import ExpertWeights
from megamoe_dsl.runtime.buffers import Inputs, RankBuffers
from portable import dump

NAMES = ("fc1", "fc1_sf", "fc2", "fc2_sf")


@pytest.mark.parametrize("recipe", ["fp8xfp4", "fp8xfp8"])
def test_given_weights_stay_as_they_were(recipe):
    problem = Problem(512, 256, 4, 2, 1, 16, recipe=recipe)
    kind = Sm90Config if recipe == "fp8xfp8" else Sm100Config
    first, second = random_weights(problem, 0, 1), random_weights(problem, 0, 2)
    before = {name: getattr(first, name).clone() for name in NAMES}
    buffers = RankBuffers(choose(problem, Target.typical(kind.arch, 4), 16), first)
    placed = {name: getattr(buffers.weights, name).clone() for name in NAMES}
    buffers.load_weights(second)
    assert all(torch.equal(getattr(first, n).view(torch.uint8), before[n].view(torch.uint8)) for n in NAMES)
    assert any(not torch.equal(getattr(buffers.weights, n).view(torch.uint8), placed[n].view(torch.uint8)) for n in NAMES)
    buffers.load_weights(first)
    assert all(torch.equal(getattr(buffers.weights, n).view(torch.uint8), placed[n].view(torch.uint8)) for n in NAMES)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.int64, torch.float32])
def test_portable_pickles_keep_tensors(dtype):
    value = torch.arange(12).to(dtype).view(3, 4)
    back = pickle.loads(dump({"a": [value, value[:0]]}))["a"]
    assert back[0].dtype == dtype and torch.equal(back[0].view(torch.uint8), value.view(torch.uint8)) and back[1].shape == (0, 4)


@pytest.mark.parametrize("recipe", ["fp8xfp4", "fp8xfp8"])
def test_strides_of_given_weights_do_not_matter(recipe):
    """Column-major scales, say: a kernel reads rows."""
    problem = Problem(512, 256, 4, 2, 1, 16, recipe=recipe)
    config = choose(problem, Target.typical("sm_90a" if recipe == "fp8xfp8" else "sm_100a", 4), 16)
    given = random_weights(problem, 0, 1)
    turned = ExpertWeights(*(getattr(given, name).transpose(-1, -2).contiguous().transpose(-1, -2) for name in NAMES))
    assert not turned.fc2_sf.is_contiguous()
    straight, kept = (RankBuffers(config, weights).weights for weights in (given, turned))
    for name in NAMES:
        want, found = getattr(straight, name), getattr(kept, name)
        assert found.is_contiguous() and torch.equal(found.view(torch.uint8), want.view(torch.uint8))


def test_tokens_that_do_not_fit_are_not_loaded():
    problem = Problem(256, 128, 4, 2, 1, 16, recipe="fp8xfp8")
    buffers = RankBuffers(choose(problem, Target.typical("sm_90a", 4), 16), random_weights(problem, 0, 1))
    tokens = random_inputs(problem, 0, 3, 5)
    buffers.load(Inputs(*tokens))
    before = buffers.sym.clone()
    twice = tokens.topk_idx.clone()
    twice[1] = 2
    for bad in (tokens._replace(topk_idx=twice), tokens._replace(x_sf=tokens.x_sf * torch.nan), tokens._replace(x=tokens.x[:2])):
        with pytest.raises(ProblemError):
            buffers.load(Inputs(*bad))
    assert torch.equal(buffers.sym, before)
    masked = tokens.topk_idx.clone()
    masked[1, 0], tokens.topk_weights[1, 0] = -1, torch.nan
    buffers.load(Inputs(*tokens._replace(topk_idx=masked)))  # the weight of a masked slot is not read


def test_an_expert_elsewhere_is_not_loaded():
    problem = Problem(256, 128, 4, 2, 1, 16, recipe="fp8xfp8")
    buffers = RankBuffers(choose(problem, Target.typical("sm_90a", 4), 16), random_weights(problem, 0, 1))
    one = random_weights(problem, 0, 2).expert(1)
    with pytest.raises(ProblemError, match=r"weights\.fc1\.device = .*meta.*: must be cpu"):
        buffers.load_expert(1, one.map(lambda tensor: tensor.to("meta")))
    buffers.load_expert(1, one)
