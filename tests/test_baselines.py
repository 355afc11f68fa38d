"""Other projects' kernels (bench/baselines): how they are found, and what they are asked for; a package of the same functions stands in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from baselines import BASELINES, find_baseline, load_baseline
from baselines.deep_gemm import DeepGemm, DeepGemmSm100
from baselines.layer import LayerBeside
from megamoe_dsl.arch import SM100
from megamoe_dsl.bench import point as point_module
from megamoe_dsl.cases import random_inputs, random_weights
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import transform_weights
from megamoe_dsl.quant.expansion import fp8_weights
from torch_layer import TorchLayer

MOE = Problem(512, 256, 4, 2, 1, 3, recipe="fp8xfp8", activation_clamp=10.0)
TOKENS = 2

PACKAGE = """
from types import SimpleNamespace
import torch
from megamoe_dsl.compat.deep_gemm import transform_weights_for_mega_moe

__version__ = "0.1.5"
asked = []

def transform_weights_for_mega_moe_sm90(first, second):
    asked.append("transform")
    return (first[0].clone(), first[1]), second

def get_symm_buffer_for_mega_moe(group, experts, tokens, topk, hidden, intermediate):
    asked.append(f"allocate {experts} {tokens} {topk} {hidden} {intermediate}")
    x = torch.zeros(tokens + 5, hidden, dtype=torch.float8_e4m3fn)
    kind = torch.float32 if "transform" in asked else torch.int32
    return SimpleNamespace(
        buffer=SimpleNamespace(nbytes=1000), x=x, x_sf=torch.zeros(tokens + 5, hidden // 128, dtype=kind),
        destroy=lambda: asked.append("destroy"),
        topk_idx=torch.zeros(tokens + 5, topk, dtype=torch.int64), topk_weights=torch.zeros(tokens + 5, topk),
    )

def fp8_fp4_mega_moe(y, first, second, buffer, activation_clamp):
    asked.append(f"launch fp4 {activation_clamp}")
    y.copy_(buffer.topk_weights[: len(y), :1])

def fp8_mega_moe(y, first, second, buffer, activation_clamp):
    asked.append(f"launch {activation_clamp}")
    y.copy_(buffer.topk_weights[: len(y), :1])
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the package."""
    (tmp_path / "deep_gemm").mkdir()
    (tmp_path / "deep_gemm" / "__init__.py").write_text(PACKAGE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "deep_gemm", raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(dist, "barrier", lambda: None)
    yield tmp_path
    sys.modules.pop("deep_gemm", None)


def test_a_layer_of_the_baseline(site: Path) -> None:
    inputs, weights = random_inputs(MOE, 0, TOKENS, 1), random_weights(MOE, 0, 1)
    layer = load_baseline(site, MOE, weights)
    assert isinstance(layer, DeepGemm) and layer.version == "0.1.5"
    layer.allocate(MOE)
    layer.load(inputs)
    assert layer.num_bytes == 1000 and torch.equal(layer.buffer.x_sf[:TOKENS], inputs.x_sf) and not layer.buffer.x_sf[TOKENS:].any()
    y = torch.empty(TOKENS, MOE.hidden)
    layer(y)
    assert torch.equal(y[:, 0], inputs.topk_weights[:, 0])
    layer.free()
    layer.free()  # of nothing
    assert layer.library.asked == ["transform", "allocate 4 3 2 512 256", "launch 10.0", "destroy"]


def test_a_folder_without_a_baseline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match=r"baseline = '.*': must be a folder with unpacked wheels, deep_gemm among them"):
        find_baseline(tmp_path)
    for kind in BASELINES:
        (tmp_path / kind.PACKAGE).mkdir(exist_ok=True)
        assert find_baseline(tmp_path, kind.RECIPE) is kind
    assert find_baseline(tmp_path, "fp8xmxfp4") is DeepGemm
    with pytest.raises(ProblemError, match="baseline = 'mxf4xmxf4': must be left out: baselines compute fp8xfp8 and fp8xfp4"):
        find_baseline(tmp_path, "mxf4xmxf4")


def test_on_sm100_the_baseline_has_the_weights_of_the_layer(site: Path) -> None:
    """Its functions are those of compat.deep_gemm, which makes the bytes that DeepGEMM makes."""
    moe = replace(MOE, recipe="fp8xfp4")
    inputs, weights = random_inputs(moe, 0, TOKENS, 1), random_weights(moe, 0, 1)
    layer = load_baseline(site, moe, weights)
    assert isinstance(layer, DeepGemmSm100)
    kernel_order = transform_weights(moe, SM100, weights)
    (fc1, fc1_sf), (fc2, fc2_sf) = layer.weights
    assert torch.equal(fc1.view(torch.uint8), kernel_order.fc1) and torch.equal(fc2.view(torch.uint8), kernel_order.fc2)
    for mine, theirs in ((fc1_sf, kernel_order.fc1_sf), (fc2_sf, kernel_order.fc2_sf)):
        assert torch.equal(mine.transpose(1, 2).flatten(0, 1), theirs)
    layer.allocate(moe)
    layer.load(inputs)
    assert torch.equal(layer.buffer.x_sf[:TOKENS].view(torch.uint8), inputs.x_sf)
    y = torch.empty(TOKENS, moe.hidden)
    layer(y)
    assert torch.equal(y[:, 0], inputs.topk_weights[:, 0])
    assert layer.library.asked == ["allocate 4 3 2 512 256", "launch fp4 10.0"]


@pytest.mark.parametrize(("recipe", "packed"), [("fp8xfp8", False), ("fp8xmxfp4", True)])
def test_a_layer_has_a_baseline_beside_it(recipe: str, packed: bool, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same weights, in FP8; or the reason why there is none."""
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    drawn = random_weights
    monkeypatch.setattr(point_module, "random_weights", lambda problem, rank, seed, device: drawn(problem, rank, seed))
    problem = replace(MOE, recipe=recipe)
    layer, alone = LayerBeside(problem, site), LayerBeside(problem, None)
    assert isinstance(layer.baseline, DeepGemm) and layer.baseline_error is None
    assert (alone.baseline, alone.baseline_error) == (None, None)
    codes = fp8_weights(layer.weights).fc2 if packed else layer.weights.fc2
    assert torch.equal(layer.baseline.weights[1][0].view(torch.uint8), codes.view(torch.uint8))
    (site / "deep_gemm" / "__init__.py").write_text("raise OSError('no library ' + 'x' * 1000)")
    sys.modules.pop("deep_gemm")
    broken = LayerBeside(problem, site)
    assert broken.baseline is None and broken.baseline_error == repr(OSError("no library " + "x" * 1000))[:300]


def test_layers_that_baselines_do_not_compute_are_named(site: Path) -> None:
    weights = random_weights(MOE, 0, 1)
    for field, value, plain in (("activation", "swigluoai", "silu"), ("biases", True, "False"), ("weigh_results", True, "False")):
        other = replace(MOE, **{field: value})
        for layer in (load_baseline, lambda _, problem, given: TorchLayer(problem, given)):
            with pytest.raises(ProblemError, match=f"{field} = {value!r}: must be {plain}: baselines have no other"):
                layer(site, other, weights)
