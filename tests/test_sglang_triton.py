"""SGLang's Triton kernels beside ours (bench/experts/sglang_triton.py): what their files are told, and the slots they are given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from megamoe_dsl.bench.experts import sglang_triton
from megamoe_dsl.kernels.expert_routing.layer import ExpertLayer
from megamoe_dsl.runtime.expert_call import ExpertCall, ExpertWeightsFp8

THEIRS = """
from sglang.kernels.jit.utils import is_arch_support_pdl
from sglang.srt.environ import envs
from sglang.srt.utils import is_cuda, is_hip
from sglang.somewhere import nobody_calls

said = (is_cuda(), is_hip(), is_arch_support_pdl(), envs.ANY.get())
"""


def test_their_files_are_imported_without_the_rest_of_sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (sglang_triton.MOE, sglang_triton.QUANTISATION):
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True)
        path.write_text(THEIRS)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    moe, quantisation = sglang_triton.load(tmp_path)
    assert moe.said == quantisation.said == (True, False, True, False)
    for name in set(sys.modules) - before:
        monkeypatch.delitem(sys.modules, name)


def test_slots_lie_in_blocks_of_their_experts() -> None:
    layer, weights = ExpertLayer(256, 128, 8, 2), ExpertWeightsFp8(*[torch.empty(0)] * 4)
    idx = torch.tensor([[0, 3], [3, 5], [3, 0], [3, 5]])
    call = ExpertCall(layer, torch.zeros(4, 256), idx, torch.ones(4, 2), weights)
    ids, of_block, count = sglang_triton.sorted_blocks(call, 4)
    assert ids.tolist() == [0, 5, 8, 8, 1, 2, 4, 6, 3, 7, 8, 8]
    assert of_block.tolist() == [0, 3, 5] and count.tolist() == [12]
