"""quack's GEMMs beside ours (bench/moe_layers/quack_gemms.py): the rows, weights and places that they are given."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.quant import no_scales
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from moe_layers.quack_gemms import TILES, QuackLayer, quack_layers
from moe_layers.steps import SteppedExperts

THEIRS = """
from types import SimpleNamespace
import torch

GemmConfig = SimpleNamespace

def experts(starts):
    return [slice(a, b) for a, b in zip(starts.tolist(), starts.tolist()[1:])]

def gemm_gated(A, B, activation, store_preact, postact_out, cu_seqlens_m, A_idx, config):
    assert activation == "swiglu" and not store_preact and config.cluster_m == 2
    for expert, rows in enumerate(experts(cu_seqlens_m)):
        both = A[A_idx[rows].long()].float() @ B[expert].float()
        postact_out[rows] = (torch.nn.functional.silu(both[:, ::2]) * both[:, 1::2]).bfloat16()

def gemm(A, B, out, cu_seqlens_m, config):
    for expert, rows in enumerate(experts(cu_seqlens_m)):
        out[rows] = (A[rows].float() @ B[expert].float()).bfloat16()

gemm_tuned = SimpleNamespace(fn=gemm)
"""


class Ours:
    """Sorting and sum by torch."""

    def route(self, call: ExpertCall) -> None:
        experts, order = call.topk_idx.flatten().sort(stable=True)
        call.ends.copy_(torch.searchsorted(experts, torch.arange(call.layer.num_experts), right=True))
        call.sources[: call.rows] = (order // call.layer.topk).int()
        call.positions.view(-1)[order] = torch.arange(call.rows).int()

    def sum(self, call: ExpertCall) -> None:
        rows = call.fc2[0].d[call.positions.view(call.tokens, -1).long()].float()
        call.y.copy_((rows * call.topk_weights.unsqueeze(2)).sum(1))


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, QuackLayer]:
    (tmp_path / "quack").mkdir()
    (tmp_path / "quack" / "gemm_interface.py").write_text(THEIRS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("quack", "quack.gemm_interface"):
        monkeypatch.setitem(sys.modules, name, None)  # put back to what it was after the test
        monkeypatch.delitem(sys.modules, name)
    torch.manual_seed(0)
    layer = ExpertLayer(256, 128, 8, 2, recipe="bf16xbf16")
    w1, w2 = (torch.randn(8, n, k).bfloat16() / 16 for n, k in ((256, 256), (256, 128)))
    chosen = torch.rand(5, 8).topk(2, dim=1)
    weights = LayerOperands(w1, no_scales(w1), w2, no_scales(w2))
    call = ExpertCall(layer, torch.randn(5, 256).bfloat16(), chosen.indices, chosen.values, weights)
    return quack_layers(call, cast(SteppedExperts, Ours()), tmp_path)


def test_a_layer_by_quack_is_the_layer(layers: dict[str, QuackLayer]) -> None:
    call: Any = next(iter(layers.values())).call
    gate, up = torch.einsum("th,ekh->tek", call.x.float(), call.operands.w1.float()).chunk(2, dim=2)
    rows = torch.einsum("tei,ehi->teh", torch.nn.functional.silu(gate) * up, call.operands.w2.float())
    wanted = (rows.gather(1, call.topk_idx.unsqueeze(2).expand(-1, -1, 256)) * call.topk_weights.unsqueeze(2)).sum(1)
    for layer in layers.values():
        call.y.zero_()
        assert (layer().float() - wanted).norm() < 0.01 * wanted.norm()


def test_there_is_a_layer_for_each_tile(layers: dict[str, QuackLayer]) -> None:
    assert list(layers) == ["128 x 192", "128 x 256", "256 x 128", "256 x 192"]
    configs = [layer.config for layer in layers.values()]
    assert [(one.tile_m, one.tile_n, one.pingpong) for one in configs] == list(TILES)
    assert all(not one.is_dynamic_persistent and one.cluster_n == 1 for one in configs)


def test_a_folder_without_quack_is_refused(layers: dict[str, QuackLayer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = next(iter(layers.values())).call
    for name in ("quack", "quack.gemm_interface"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "quack" / "gemm_interface.py").unlink()
    with pytest.raises(ImportError, match="quack"):
        quack_layers(call, cast(SteppedExperts, Ours()), tmp_path / "none")
