"""Published experts, loaded into the ranks of a layer: bits in kernel order."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from published_files import FP4, LAYER, all_experts, deepseek_v3, deepseek_v4, deepseek_v4_fp8, gpt_oss, modelopt_nvfp4, qwen3_moe, write
from safetensors.torch import save_file

from expert_reading import read_experts
from megamoe_dsl import Target, choose
from megamoe_dsl.arch import SM90, SM100
from megamoe_dsl.cases import random_weights
from megamoe_dsl.checkpoints import PUBLISHED, Checkpoint, CheckpointError, PublishedExperts, find_layers, load, load_experts
from megamoe_dsl.checkpoints.experts import convert
from megamoe_dsl.checkpoints.published import OWN
from megamoe_dsl.checkpoints.write import convert_checkpoint
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import (
    ExpertWeights,
    dequantize,
    dequantize_e2m1,
    dequantize_e4m3,
    dequantize_weight_e4m3,
    new_weights,
    pack_e2m1,
    quantize_e2m1,
    quantize_e4m3,
    quantize_weight_e4m3,
    unpack_e2m1,
    weight_names,
)
from megamoe_dsl.recipe import RECIPES
from megamoe_dsl.runtime.buffers import RankBuffers

RANKS = [1, 2, 4, 8]


def problem_of(ranks: int, recipe: str) -> Problem:
    return Problem(256, 128, 8, 2, ranks, 16, recipe=recipe)


def empty_buffers(problem: Problem) -> RankBuffers:
    arch, kind = (SM90, Sm90Config) if problem.recipe == "fp8xfp8" else (SM100, Sm100Config)
    return RankBuffers(choose(problem, Target.typical(kind.arch, 4), 16), new_weights(problem, arch, "cpu"))


def same(problem: Problem, found: object, want: object) -> bool:
    return all(torch.equal(getattr(found, n).view(torch.uint8), getattr(want, n).view(torch.uint8)) for n in weight_names(problem))


def check_ranks(folder: Path, problem: Problem, ranks: list[ExpertWeights], **options: bool) -> None:
    """Every rank's buffers are those that the constructor makes of its weights."""
    for rank, want in enumerate(ranks):
        buffers = empty_buffers(problem)
        load_experts(buffers, folder, LAYER, rank, **options)
        assert same(problem, buffers.weights, RankBuffers(buffers.config, want).weights)
        assert same(problem, buffers.checkpoint_weights(), want)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("layout", FP4)
def test_fp4_weights_as_they_are(tmp_path: Path, layout: str, ranks: int) -> None:
    problem = problem_of(ranks, "fp8xfp4")
    weights = [random_weights(problem, rank, 1) for rank in range(ranks)]
    check_ranks(write(tmp_path, FP4[layout](all_experts(weights))), problem, weights)


@pytest.mark.parametrize("ranks", RANKS)
def test_fp8_weights_as_they_are(tmp_path: Path, ranks: int) -> None:
    problem = problem_of(ranks, "fp8xfp8")
    weights = [random_weights(problem, rank, 1) for rank in range(ranks)]
    check_ranks(write(tmp_path, deepseek_v3(all_experts(weights)), files=3, index=False), problem, weights)


@pytest.mark.parametrize("number", [0, 7])
def test_nvfp4_has_factors_of_each_expert(tmp_path: Path, number: int) -> None:
    """As kernels multiply with them: that of tokens is the largest of all ranks' experts.  Nothing converts such weights."""
    problem, generator = problem_of(2, "nvfp4xnvfp4"), torch.Generator().manual_seed(0)
    scale_2, input_scale = (torch.rand(8, 3, generator=generator) + 0.5 for _ in range(2))
    input_scale[number, 1] = 1.75
    x, hidden = torch.tensor(1.75), input_scale[:, 2]
    columns = [x.expand(8), x * scale_2[:, 0], x * scale_2[:, 1], hidden, hidden * scale_2[:, 2]]
    factors = torch.stack(columns, dim=1).chunk(2)
    weights = [replace(random_weights(problem, rank, 1), factors=one) for rank, one in enumerate(factors)]
    tensors = modelopt_nvfp4(all_experts(weights), scale_2, input_scale)
    folder = write(tmp_path / "published", tensors)
    check_ranks(folder, problem, weights)
    with pytest.raises(CheckpointError, match="which recipe fp8xfp4 cannot have: must be one of nvfp4xnvfp4"):
        read_experts(problem_of(2, "fp8xfp4"), folder, LAYER)
    with pytest.raises(ProblemError, match="recipe = 'nvfp4xnvfp4': must be one without factors"):
        convert_checkpoint(folder, tmp_path / "own", "nvfp4xnvfp4")
    name = f"model.layers.{LAYER}.mlp.experts.5.up_proj.input_scale"
    one = write(tmp_path / "one", {**tensors, name: tensors[name].view(1)})
    assert same(problem, read_experts(problem, one, LAYER, rank=1), weights[1])
    for wrong, message in ((torch.ones(2), r"dtype F32, shape \(2,\): must be one F32"), (torch.zeros(()), "must be numbers between")):
        with pytest.raises(CheckpointError, match=message):
            read_experts(problem, write(tmp_path / f"{wrong.dim()}", {**tensors, name: wrong}), LAYER, rank=1)


def test_fp8_with_powers_of_two(tmp_path: Path) -> None:
    problem = problem_of(2, "fp8xfp8")
    given = [random_weights(problem, rank, 1) for rank in range(2)]
    rounded = [[torch.exp2(getattr(w, name).log2().round()) for name in ("fc1_sf", "fc2_sf")] for w in given]
    weights = [ExpertWeights(w.fc1, fc1_sf, w.fc2, fc2_sf) for w, (fc1_sf, fc2_sf) in zip(given, rounded, strict=True)]
    check_ranks(write(tmp_path, deepseek_v4_fp8(all_experts(weights))), problem, weights)


@pytest.mark.parametrize("layout", FP4)
def test_fp4_becomes_fp8_of_the_same_values_when_asked(tmp_path: Path, layout: str) -> None:
    fp4, fp8 = problem_of(2, "fp8xfp4"), problem_of(2, "fp8xfp8")
    weights = [random_weights(fp4, rank, 1) for rank in range(2)]
    folder = write(tmp_path, FP4[layout](all_experts(weights)))
    with pytest.raises(CheckpointError, match="must be asked for with expand"):
        read_experts(fp8, folder, LAYER)
    with pytest.raises(CheckpointError, match="must be asked for with expand"):
        PublishedExperts.of(folder, LAYER).check(fp8)
    for rank, want in enumerate(weights):
        found = read_experts(fp8, folder, LAYER, rank, expand=True)
        assert torch.equal(dequantize_weight_e4m3(found.fc1, found.fc1_sf), dequantize_e2m1(want.fc1, want.fc1_sf))
        assert torch.equal(dequantize_weight_e4m3(found.fc2, found.fc2_sf), dequantize_e2m1(want.fc2, want.fc2_sf))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("recipe", ["fp8xfp8", "fp8xfp4", "mxfp8xmxfp8"])
def test_bf16_weights_are_quantized(tmp_path: Path, recipe: str, ranks: int) -> None:
    problem = problem_of(ranks, recipe)
    generator = torch.Generator().manual_seed(0)
    fc1, fc2 = (torch.randn(8, *shape, generator=generator).bfloat16() for shape in ((256, 256), (256, 128)))
    folder = write(tmp_path, qwen3_moe(fc1, fc2))
    quantize = {"fp8xfp8": quantize_weight_e4m3, "fp8xfp4": quantize_e2m1, "mxfp8xmxfp8": quantize_e4m3}[recipe]
    share = problem.experts_per_rank
    weights = []
    for rank in range(ranks):
        mine = slice(rank * share, (rank + 1) * share)
        weights.append(ExpertWeights(*quantize(fc1[mine]), *quantize(fc2[mine])))
    check_ranks(folder, problem, weights)


def test_bf16_weights_stay_as_they_are(tmp_path: Path) -> None:
    """For a layer in BF16, as they are published and as `convert` writes them."""
    generator, problem = torch.Generator().manual_seed(0), problem_of(2, "bf16xbf16")
    fc1, fc2 = (torch.randn(8, *shape, generator=generator).bfloat16() for shape in ((256, 256), (256, 128)))
    folder = write(tmp_path / "published", qwen3_moe(fc1, fc2))
    convert_checkpoint(folder, tmp_path / "own", problem.recipe)
    assert PublishedExperts.of(tmp_path / "own", LAYER).layout.name == "megamoe-bf16"
    for place in (folder, tmp_path / "own"):
        for rank, mine in enumerate((slice(0, 4), slice(4, 8))):
            found = read_experts(problem, place, LAYER, rank)
            found.validate(problem)
            assert torch.equal(found.fc1, fc1[mine]) and torch.equal(found.fc2, fc2[mine])


def test_channels_are_filled_up_with_zeros(tmp_path: Path) -> None:
    """As far as a problem has more of them than are published."""
    hidden, intermediate = 192, 96
    generator = torch.Generator().manual_seed(0)
    fc1 = quantize_e2m1(torch.randn(4, 2 * intermediate, hidden, generator=generator))
    fc2 = quantize_e2m1(torch.randn(4, hidden, intermediate, generator=generator))
    found = read_experts(Problem(256, 128, 4, 2, 1, 16), write(tmp_path, gpt_oss(ExpertWeights(*fc1, *fc2))), LAYER)
    loaded = dequantize_e2m1(found.fc1, found.fc1_sf), dequantize_e2m1(found.fc2, found.fc2_sf)
    want = torch.zeros(4, 2, 128, 256, dtype=torch.float64)
    want[:, :, :intermediate, :hidden] = dequantize_e2m1(*fc1).unflatten(1, (2, intermediate))
    assert torch.equal(loaded[0], want.flatten(1, 2))
    assert torch.equal(loaded[1][:, :hidden, :intermediate], dequantize_e2m1(*fc2))
    assert not loaded[1][:, hidden:].any() and not loaded[1][:, :, intermediate:].any()
    assert (found.fc2_sf[:, hidden:] == 127).all() and (found.fc2_sf[:, :, intermediate // 32 :] == 127).all()


def test_channels_that_fill_no_whole_blocks(tmp_path: Path) -> None:
    """As gpt-oss's 2880: gate and up have blocks of scales of their own."""
    hidden, intermediate = 320, 192
    generator = torch.Generator().manual_seed(0)
    fc1 = quantize_e2m1(torch.randn(4, 2 * intermediate, hidden, generator=generator))
    fc2 = quantize_e2m1(torch.randn(4, hidden, intermediate, generator=generator))
    folder = write(tmp_path, gpt_oss(ExpertWeights(*fc1, *fc2)))
    same = read_experts(Problem(hidden, intermediate, 4, 2, 1, 16), folder, LAYER)
    assert torch.equal(same.fc1, fc1[0]) and torch.equal(same.fc2_sf, fc2[1])
    grown = read_experts(Problem(hidden, intermediate, 4, 2, 1, 16, recipe="fp8xfp8"), folder, LAYER, expand=True)
    assert torch.equal(dequantize_weight_e4m3(grown.fc1, grown.fc1_sf, parts=2), dequantize_e2m1(*fc1))
    assert torch.equal(dequantize_weight_e4m3(grown.fc2, grown.fc2_sf), dequantize_e2m1(*fc2))
    with pytest.raises(CheckpointError, match="hidden = 320: must fill the problem's 256 but for less than 256"):
        read_experts(Problem(256, intermediate, 4, 2, 1, 16), folder, LAYER)


def test_biases_are_those_of_the_rows(tmp_path: Path) -> None:
    """Gate in even rows and up in odd ones, BF16 or another type; filled up with zeros as the rows are."""
    hidden, intermediate = 192, 96
    generator = torch.Generator().manual_seed(0)
    fc1 = quantize_e2m1(torch.randn(4, 2 * intermediate, hidden, generator=generator))
    fc2 = quantize_e2m1(torch.randn(4, hidden, intermediate, generator=generator))
    gate, up, down = (torch.randn(4, n, generator=generator).bfloat16() for n in (intermediate, intermediate, hidden))
    stem = f"model.layers.{LAYER}.mlp.experts"
    biases = {f"{stem}.gate_up_proj_bias": torch.stack([gate, up], dim=2).flatten(1), f"{stem}.down_proj_bias": down.half()}
    folder = write(tmp_path, {**gpt_oss(ExpertWeights(*fc1, *fc2)), **biases})
    found = read_experts(Problem(256, 128, 4, 2, 2, 16, biases=True), folder, LAYER, rank=1)
    assert found.fc1_bias is not None and found.fc2_bias is not None
    assert all((one.shape, one.dtype) == ((2, 256), torch.float32) for one in (found.fc1_bias, found.fc2_bias))
    assert torch.equal(found.fc1_bias[:, :intermediate], gate[2:].float())
    assert torch.equal(found.fc1_bias[:, 128 : 128 + intermediate], up[2:].float())
    assert torch.equal(found.fc2_bias[:, :hidden], down[2:].half().float())
    assert not found.fc1_bias.unflatten(1, (2, 128))[..., intermediate:].any() and not found.fc2_bias[:, hidden:].any()


def test_only_a_ranks_share_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(4, "fp8xfp4")
    folder = write(tmp_path, deepseek_v4(all_experts([random_weights(problem, rank, 1) for rank in range(4)])))
    asked, read = [], Checkpoint.read
    monkeypatch.setattr(Checkpoint, "read", lambda self, name, row=None: asked.append(name) or read(self, name, row))
    read_experts(problem, folder, LAYER, 2)
    assert {int(name.split(".")[4]) for name in asked} == {4, 5} and len(asked) == len(set(asked)) == 12


def test_a_checkpoint_that_was_closed_opens_its_files_again(tmp_path: Path) -> None:
    file, found = tmp_path / "a.safetensors", []
    checkpoint = Checkpoint(tmp_path)
    for value in (1.0, 2.0):
        save_file({"a": torch.tensor([value])}, str(tmp_path / "new"))
        (tmp_path / "new").replace(file)
        found.append(checkpoint.read("a").item())
        checkpoint.close()
    assert found == [1.0, 2.0]


def test_what_is_there_is_found(tmp_path: Path) -> None:
    problem = problem_of(1, "fp8xfp4")
    tensors = deepseek_v4(random_weights(problem, 0, 1))
    more = {name.replace(f"layers.{LAYER}", f"layers.{layer}"): tensor for name, tensor in tensors.items() for layer in (11, 0)}
    checkpoint = Checkpoint(write(tmp_path, {**tensors, **more}))
    experts = PublishedExperts.of(checkpoint, 11)
    assert find_layers(checkpoint) == [0, LAYER, 11]
    assert (experts.layout.name, experts.num_experts, experts.shape) == ("deepseek-v4", 8, (256, 128))


def test_progress_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    problem, seen = problem_of(2, "fp8xfp4"), []
    folder = write(tmp_path, gpt_oss(all_experts([random_weights(problem, rank, 1) for rank in range(2)])))
    with caplog.at_level(logging.INFO, "megamoe_dsl"):
        load_experts(empty_buffers(problem), folder, LAYER, 1, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    begun, *done = caplog.messages
    assert begun == f"layer 3, rank 1: 4 experts of layout gpt-oss from {folder}"
    assert done == [f"layer 3, rank 1: {count} of 4 experts" for count in (1, 2, 3, 4)]


def test_a_line_is_logged_for_each_tenth(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    nothing = SimpleNamespace(check=lambda *_, **__: None, layout=SimpleNamespace(name="any"), checkpoint=SimpleNamespace(path="here"))
    monkeypatch.setattr(load, "PublishedExperts", SimpleNamespace(of=lambda path, layer: nothing))
    monkeypatch.setattr(load, "_load_expert", lambda *given: None)
    with caplog.at_level(logging.INFO, "megamoe_dsl"):
        load_experts(SimpleNamespace(problem=Problem(256, 128, 40, 1)), "here", 7)  # type: ignore[arg-type]
    assert caplog.messages[1:] == [f"layer 7, rank 0: {count} of 40 experts" for count in range(4, 41, 4)]


def test_an_interrupted_load_goes_on(tmp_path: Path) -> None:
    problem = problem_of(2, "fp8xfp4")
    ranks = [random_weights(problem, rank, 1) for rank in range(2)]
    tensors = deepseek_v4(all_experts(ranks))
    gone = f"layers.{LAYER}.ffn.experts.6.w3.scale"  # the third of the second rank
    folder = write(tmp_path, {name: tensor for name, tensor in tensors.items() if name != gone}, files=1, index=False)
    checkpoint = Checkpoint(folder)
    buffers = empty_buffers(problem)
    with pytest.raises(CheckpointError, match="no such tensor") as caught:
        load_experts(buffers, checkpoint, LAYER, 1)
    assert (caught.value.expert, caught.value.tensor) == (2, gone)
    placed = write(tmp_path, tensors, files=1)
    before, load, seen = [], buffers.load_expert, []
    buffers.load_expert = lambda index, expert: before.append(index) or load(index, expert)  # type: ignore[method-assign]
    for start in (caught.value.expert, 4):
        load_experts(buffers, placed, LAYER, 1, start=start, progress=lambda done, total: seen.append((done, total)))
    assert before == [2, 3] and seen == [(3, 4), (4, 4)] and same(problem, buffers.checkpoint_weights(), ranks[1])


def test_nibbles_are_low_first() -> None:
    """As transformers' integrations/mxfp4.py and DeepSeek-V4's convert.py read them."""
    assert unpack_e2m1(torch.tensor([[0x21]], dtype=torch.uint8)).tolist() == [[1, 2]]
    assert pack_e2m1(torch.tensor([[1, 2]], dtype=torch.uint8)).tolist() == [[0x21]]


def test_fp8_blocks_become_mxfp8_of_the_same_values(tmp_path: Path) -> None:
    """Powers of two per 128 x 128, which every row of the block and every 32 of its channels then have; and what `convert` makes of it."""
    blocks, problem = problem_of(2, "fp8xfp8"), problem_of(2, "mxfp8xmxfp8")
    given = [random_weights(blocks, rank, 1) for rank in range(2)]
    rounded = [[torch.exp2(getattr(w, name).log2().round()) for name in ("fc1_sf", "fc2_sf")] for w in given]
    weights = [ExpertWeights(w.fc1, fc1_sf, w.fc2, fc2_sf) for w, (fc1_sf, fc2_sf) in zip(given, rounded, strict=True)]
    folder = write(tmp_path / "published", deepseek_v4_fp8(all_experts(weights)))
    convert_checkpoint(folder, tmp_path / "own", problem.recipe)
    assert PublishedExperts.of(tmp_path / "own", LAYER).layout.name == "megamoe-mxfp8"
    for rank, want in enumerate(weights):
        for place in (folder, tmp_path / "own"):
            found = read_experts(problem, place, LAYER, rank)
            assert torch.equal(dequantize_e4m3(found.fc1, found.fc1_sf), dequantize_weight_e4m3(want.fc1, want.fc1_sf))
            assert torch.equal(dequantize_e4m3(found.fc2, found.fc2_sf), dequantize_weight_e4m3(want.fc2, want.fc2_sf))


@pytest.mark.parametrize("recipe", [name for name, one in RECIPES.items() if not one.weights.factor])
def test_every_recipe_has_a_layout_of_its_own(recipe: str) -> None:
    weights = RECIPES[recipe].weights
    assert PUBLISHED[OWN[weights]].format == weights


def test_scales_of_blocks_are_those_of_their_rows() -> None:
    """Also where the last block has fewer rows than others."""
    stored, wanted = PUBLISHED["deepseek-v4-fp8"].format, RECIPES["mxfp8xmxfp8"].weights
    blocks = torch.tensor([[120, 121], [122, 123]], dtype=torch.uint8)
    codes, scales = convert(torch.zeros(192, 256, dtype=torch.float8_e4m3fn), blocks, stored, wanted)
    assert codes.shape == (192, 256) and scales is not None and scales.shape == (192, 8)
    assert torch.equal(scales, blocks.repeat_interleave(torch.tensor([128, 64]), dim=0).repeat_interleave(4, dim=1))


def test_rows_that_end_within_a_scale_are_converted() -> None:
    """Their last scale is of the values that are there."""
    ones, bf16 = torch.ones(2, 40), RECIPES["bf16xbf16"].weights
    fp4, fp8, mxfp8 = (RECIPES[name].weights for name in ("fp8xfp4", "fp8xfp8", "mxfp8xmxfp8"))
    packed = torch.full((2, 20), 0x22, dtype=torch.uint8)  # two ones in each byte
    for codes, scales, stored, wanted in (
        (ones.bfloat16(), None, bf16, fp4),
        (ones.bfloat16(), None, bf16, mxfp8),
        (packed, torch.full((2, 2), 127, dtype=torch.uint8), fp4, fp8),
    ):
        values = dequantize(*convert(codes, scales, stored, wanted))  # type: ignore[arg-type]
        assert torch.equal(values[:, :40], ones.double()) and not values[:, 40:].any()
