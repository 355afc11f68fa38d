"""SGLang's kernels, and DeepGEMM's as SGLang calls them, beside ours (bench/experts): what their files are told and given."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.quant import quantize_weight_e4m3
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from moe_layers import sglang_site, trials
from moe_layers.deep_gemm import SGLANG_ACTIVATIONS, deep_gemm_fc1, deep_gemm_layer, deep_gemm_ways
from moe_layers.inputs import result
from moe_layers.sglang_blocks import SlotBlocks, sglang_sort, sorted_blocks
from moe_layers.sglang_triton import CONFIGS, sglang_layer, sglang_ways
from moe_layers.trials import Trials
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
    weights = LayerOperands(*quantize_weight_e4m3(w1), *quantize_weight_e4m3(w2))
    chosen = torch.rand(5, 8).topk(2, dim=1)
    return ExpertCall(layer, torch.randn(5, 256).bfloat16(), chosen.indices, chosen.values, weights)


@pytest.fixture
def tried(call: ExpertCall, monkeypatch: pytest.MonkeyPatch) -> Trials:
    """Without graphs, which want a GPU."""
    monkeypatch.setattr(trials, "graph_of", lambda launch: launch())
    return Trials(partial(error, call))


def error(call: ExpertCall, y: torch.Tensor) -> float:
    expected = torch.stack([result(call, token) for token in range(call.tokens)])
    return float((y.double() - expected).norm() / expected.norm())


def test_their_files_are_imported_without_the_rest_of_sglang(wheel: Path) -> None:
    names = (sglang_site.MOE, sglang_site.QUANTIZATION)
    write(wheel, **dict.fromkeys(names, THEIRS))
    for name in names:
        assert sglang_site.load(wheel, name).said == (True, False, True, False)


def test_their_compiler_is_theirs_where_the_wheel_has_it(wheel: Path) -> None:
    arch = "from sglang.srt.utils.common import is_cuda\nis_arch_support_pdl = lambda: [is_cuda()]"
    utils = {"__init__": "from sglang.kernels.jit.utils.arch import *", "arch": arch}
    write(wheel, **{"sglang.kernels.jit.__init__": "", **{f"sglang.kernels.jit.utils.{name}": text for name, text in utils.items()}})
    write(wheel, **{sglang_site.MOE: THEIRS})
    assert sglang_site.load(wheel, sglang_site.MOE).said == (True, False, [True], False)


@pytest.mark.parametrize(("given", "taken"), [(None, "/opt/cuda"), ("/usr/cuda", "/usr/cuda")])
def test_their_compiler_is_told_where_cuda_is(wheel: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, taken: str) -> None:
    monkeypatch.setattr(sglang_site, "cuda_toolkit", lambda: Path("/opt/cuda"))
    monkeypatch.setattr(os, "environ", {} if given is None else {"CUDA_HOME": given})
    sglang_site.load(wheel, sglang_site.MOE)
    assert os.environ["CUDA_HOME"] == taken


def test_a_wheel_that_lacks_a_file_is_refused(wheel: Path, call: ExpertCall) -> None:
    (wheel / f"{sglang_site.ALIGNMENT.replace('.', '/')}.py").unlink()
    with pytest.raises(ImportError, match="moe_align"):
        sglang_sort(call, wheel, 4)


def test_slots_lie_in_blocks_of_their_experts() -> None:
    layer, weights = ExpertLayer(256, 128, 8, 2), LayerOperands(*[torch.empty(0)] * 4)
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


def sorted_call(wheel: Path, call: ExpertCall) -> ExpertCall:
    """With what Linear1 takes in the call's workspace."""
    experts, order = call.topk_idx.flatten().sort(stable=True)
    call.ends.copy_(torch.searchsorted(experts, torch.arange(8), right=True))
    call.sources[: call.rows] = (order // 2).int()
    codes, scales = sglang_site.load(wheel, sglang_site.QUANTIZATION)._per_token_group_quant_8bit_raw(call.x, 128)
    call.x_q.view(torch.uint8).copy_(codes.view(torch.uint8))
    call.x_sf.copy_(scales)
    return call


def test_linear1_by_deep_gemm_is_followed_by_an_activation(wheel: Path, call: ExpertCall) -> None:
    seen: list[torch.Tensor] = []

    def see(gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(gate_up.clone())
        return gate_up, gate_up

    deep_gemm_fc1(sorted_call(wheel, call), wheel).activated(see)()
    row, expert = int(call.sources[0]), int(call.topk_idx.min())
    w1 = call.operands.w1[expert].float() * call.operands.w1_sf[expert].repeat_interleave(128, 0).repeat_interleave(128, 1)
    expected = call.x_q[row].float() * call.x_sf[row].repeat_interleave(128) @ w1.T
    assert (seen[0][0].float() - expected).norm() < 0.01 * expected.norm()


def test_all_their_ways_are_tried(wheel: Path, call: ExpertCall, tried: Trials) -> None:
    tried.others("sglang", partial(sglang_ways, "qwen3-next", call, wheel))
    tiles = ("16 x 128", "64 x 128")
    sorting = {"sorting, 16 rows", "sorting, 64 rows"}
    layers = {f"{before}sglang {tile}" for before in ("", "sorting, ") for tile in tiles}
    assert set(tried.launches) == sorting | layers and set(tried.errors) == layers and not tried.refused
    assert max(tried.errors.values()) < 0.06


def test_a_sort_that_is_wrong_costs_no_other_way(wheel: Path, call: ExpertCall, tried: Trials) -> None:
    write(wheel, **{sglang_site.ALIGNMENT: ALIGN.replace("blocks] = expert", "blocks] = expert // 2")})
    tried.others("sglang", partial(sglang_ways, "qwen3-next", call, wheel))
    assert set(tried.launches) == {"sglang 16 x 128", "sglang 64 x 128"}
    assert all(name.startswith("sorting, ") and "are not those of the call" in reason for name, reason in tried.refused.items())
    assert len(tried.refused) == 4


def test_an_activation_that_is_missing_costs_no_other_way(wheel: Path, call: ExpertCall, tried: Trials) -> None:
    (wheel / f"{sglang_site.ACTIVATION.replace('.', '/')}.py").unlink()
    tried.others("deep_gemm", partial(deep_gemm_ways, sorted_call(wheel, call), wheel, wheel))
    alone = {"permute", "deep_gemm fc1", "permute, deep_gemm fc1"}
    assert set(tried.launches) == alone | {"permute, deep_gemm fc1, Triton", "deep_gemm layer, Triton"}
    assert set(tried.errors) == {"deep_gemm layer, Triton"} and tried.errors["deep_gemm layer, Triton"] < 0.06
    assert set(tried.refused) == {"permute, deep_gemm fc1, fused", "deep_gemm layer, fused"}
    assert set(deep_gemm_ways(call, wheel, None)) == alone
