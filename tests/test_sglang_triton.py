"""SGLang's kernels, and DeepGEMM's as SGLang calls them, beside ours (bench/experts): what their files are told and given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from megamoe_dsl.bench.experts import run, sglang_site
from megamoe_dsl.bench.experts.deep_gemm import SGLANG_ACTIVATIONS, deep_gemm_fc1, deep_gemm_layer
from megamoe_dsl.bench.experts.inputs import result
from megamoe_dsl.bench.experts.sglang_blocks import SlotBlocks, sglang_sort, sorted_blocks
from megamoe_dsl.bench.experts.sglang_triton import CONFIGS, sglang_layer
from megamoe_dsl.kernels.expert_routing.layer import ExpertLayer
from megamoe_dsl.quant import quantize_weight_e4m3
from megamoe_dsl.runtime.expert_call import ExpertCall, ExpertWeightsFp8
from sglang_stand_in import ALIGN, wheel, write

assert wheel  # the fixture
CONFIG = {**CONFIGS["qwen3-next"][0], "BLOCK_SIZE_M": 4}
THEIRS = """
from sglang.kernels.jit.utils import is_arch_support_pdl
from sglang.srt.environ import envs
from sglang.srt.utils import is_cuda, is_hip
from sglang.somewhere import nobody_calls

said = (is_cuda(), is_hip(), is_arch_support_pdl(), envs.ANY.get())
"""


@pytest.fixture
def call() -> ExpertCall:
    torch.manual_seed(0)
    layer = ExpertLayer(256, 128, 8, 2)
    w1, w2 = (torch.randn(8, n, k) / 16 for n, k in ((256, 256), (256, 128)))
    weights = ExpertWeightsFp8(*quantize_weight_e4m3(w1), *quantize_weight_e4m3(w2))
    chosen = torch.rand(5, 8).topk(2, dim=1)
    return ExpertCall(layer, torch.randn(5, 256).bfloat16(), chosen.indices, chosen.values, weights)


def error(call: ExpertCall, y: torch.Tensor) -> float:
    expected = torch.stack([result(call, token) for token in range(call.tokens)])
    return float((y.double() - expected).norm() / expected.norm())


def test_their_files_are_imported_without_the_rest_of_sglang(wheel: Path) -> None:
    names = (sglang_site.MOE, sglang_site.QUANTISATION)
    write(wheel, **dict.fromkeys(names, THEIRS))
    for name in names:
        assert sglang_site.load(wheel, name).said == (True, False, True, False)


def test_their_compiler_is_theirs_where_the_wheel_has_it(wheel: Path) -> None:
    arch = "from sglang.srt.utils.common import is_cuda\nis_arch_support_pdl = lambda: [is_cuda()]"
    utils = {"__init__": "from sglang.kernels.jit.utils.arch import *", "arch": arch}
    write(wheel, **{"sglang.kernels.jit.__init__": "", **{f"sglang.kernels.jit.utils.{name}": text for name, text in utils.items()}})
    write(wheel, **{sglang_site.MOE: THEIRS})
    assert sglang_site.load(wheel, sglang_site.MOE).said == (True, False, [True], False)


def test_a_wheel_that_lacks_a_file_is_refused(wheel: Path, call: ExpertCall) -> None:
    (wheel / f"{sglang_site.ALIGNMENT.replace('.', '/')}.py").unlink()
    with pytest.raises(ImportError, match="moe_align"):
        sglang_sort(call, wheel, 4)


def test_slots_lie_in_blocks_of_their_experts() -> None:
    layer, weights = ExpertLayer(256, 128, 8, 2), ExpertWeightsFp8(*[torch.empty(0)] * 4)
    idx = torch.tensor([[0, 3], [3, 5], [3, 0], [3, 5]])
    call = ExpertCall(layer, torch.zeros(4, 256), idx, torch.ones(4, 2), weights)
    ids, of_block, rows = sorted_blocks(call, 4)
    assert ids.tolist() == [0, 5, 8, 8, 1, 2, 4, 6, 3, 7, 8, 8]
    assert of_block.tolist() == [0, 3, 5] and rows.tolist() == [12]


@pytest.mark.parametrize("block_m", [1, 4, 16])
def test_their_sort_gives_the_same_blocks(wheel: Path, call: ExpertCall, block_m: int) -> None:
    theirs, ours = sglang_sort(call, wheel, block_m)(), sorted_blocks(call, block_m)
    assert theirs.slots(block_m).tolist() == ours.slots(block_m).tolist()
    assert len(theirs.slots(block_m)) == int(ours.rows) and len(theirs.ids) >= int(ours.rows)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("= slots.int()", "= slots.int().clamp(max=3)"),
        ("blocks] = expert", "blocks] = expert // 2"),
        ("rows.fill_(place)", "rows.fill_(4)"),
    ],
)
def test_other_blocks_are_refused(wheel: Path, call: ExpertCall, right: str, wrong: str) -> None:
    assert right in ALIGN
    write(wheel, **{sglang_site.ALIGNMENT: ALIGN.replace(right, wrong)})
    with pytest.raises(RuntimeError, match="blocks of 4 rows"):
        sglang_sort(call, wheel, 4)


@pytest.mark.parametrize("sorting", [True, False])
def test_a_layer_by_sglang_is_the_layer(wheel: Path, call: ExpertCall, sorting: bool) -> None:
    sort: Callable[[], SlotBlocks] = sglang_sort(call, wheel, 4) if sorting else partial(SlotBlocks, *sorted_blocks(call, 4))
    assert error(call, sglang_layer(call, wheel, CONFIG, sort)()) < 0.06


@pytest.mark.parametrize("way", SGLANG_ACTIVATIONS)
def test_a_layer_by_deep_gemm_is_the_layer(wheel: Path, call: ExpertCall, way: str) -> None:
    layer = deep_gemm_layer(call, wheel, wheel, SGLANG_ACTIVATIONS[way](wheel))
    assert layer.rows % 128 == 0 and error(call, layer()) < 0.06


def test_linear1_by_deep_gemm_is_followed_by_each_activation(wheel: Path, call: ExpertCall) -> None:
    experts, order = call.topk_idx.flatten().sort(stable=True)
    call.ends.copy_(torch.searchsorted(experts, torch.arange(8), right=True))
    call.sources[: call.rows] = (order // 2).int()
    quantisation = sglang_site.load(wheel, sglang_site.QUANTISATION)
    codes, scales = quantisation._per_token_group_quant_8bit_raw(call.x, 128)
    call.x_q.view(torch.uint8).copy_(codes.view(torch.uint8))
    call.x_sf.copy_(scales)
    seen: list[torch.Tensor] = []

    def see(gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(gate_up.clone())
        return gate_up, gate_up

    ways = deep_gemm_fc1(call, wheel, {"seen": see})
    assert list(ways) == ["permute", "deep_gemm fc1", "permute, deep_gemm fc1", "permute, deep_gemm fc1, seen"]
    ways["permute, deep_gemm fc1, seen"]()
    first, row = int(experts[0]), int(order[0]) // 2
    w1 = call.weights.w1[first].float() * call.weights.w1_sf[first].repeat_interleave(128, 0).repeat_interleave(128, 1)
    expected = codes[row].float() * scales[row].repeat_interleave(128) @ w1.T
    assert (seen[0][0].float() - expected).norm() < 0.01 * expected.norm()


def test_what_no_graph_holds_is_refused_but_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def graph_of(way: Callable[[], None]) -> None:
        way()

    def fails() -> None:
        raise RuntimeError("waits for the host\nsomewhere")

    monkeypatch.setattr(run, "graph_of", graph_of)
    refused: dict[str, str] = {}
    ways = {"ours": fails, "theirs": fails, "others": lambda: None}
    run.drop_ungraphed(ways, {"ours"}, refused)
    assert list(ways) == ["ours", "others"] and refused == {"theirs": "waits for the host"}
