"""A made-up wheel of SGLang and DeepGEMM: its kernels in torch, with the names and arguments of theirs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from moe_layers import sglang_site as site

QUANTIZE = """
import torch
from sglang.srt.utils import is_hip

def _per_token_group_quant_8bit_raw(x, group, column_major_scales=False, scale_tma_aligned=False):
    blocks = x.float().view(len(x), -1, group)
    scales = blocks.abs().amax(2).clamp(min=1e-10) / 448
    return (blocks / scales.unsqueeze(2)).view_as(x).to(torch.float8_e4m3fn), scales
"""
MOE = """
import torch
from sglang.srt.environ import envs

wide = lambda codes, scales: codes.float() * scales.repeat_interleave(128, -1)[..., : codes.shape[-1]]

def invoke_fused_moe_kernel(a, b, bias, c, a_sf, b_sf, zeros, weights, chosen, ids, of_block, rows, weigh, topk, config, *rest):
    assert rest[1:] == (True, False, False, False, False, [128, 128])
    slots, block_m, c = chosen.numel(), config["BLOCK_SIZE_M"], c.view(-1, c.shape[-1])
    for block in range(int(rows) // block_m):
        expert = int(of_block[block])
        w = wide(b[expert], b_sf[expert].repeat_interleave(128, 0))
        for slot in ids[block * block_m : (block + 1) * block_m].tolist():
            if slot < slots:
                c[slot] = wide(a, a_sf)[slot // topk] @ w.T * (weights.flatten()[slot] if weigh else 1)

def act_and_mul_triton(both, product, config, activation):
    gate, up = both.float().chunk(2, 1)
    product.copy_(torch.nn.functional.silu(gate) * up)

def moe_sum_reduce_triton(rows, y, scale):
    y.copy_(rows.float().sum(1) * scale)
"""
ALIGN = """
import torch

def moe_align_block_size(chosen, buckets, block_m, ids, of_block, rows, sums, pad):
    assert pad and len(sums) == buckets + 1 and len(ids) % 4 == 0
    ids.fill_(chosen.numel())
    place = 0
    for expert in range(buckets - 1):
        slots = (chosen.flatten() == expert).nonzero().flatten().flip(0)  # in no promised order
        ids[place : place + len(slots)] = slots.int()
        blocks = -(-len(slots) // block_m)
        of_block[place // block_m : place // block_m + blocks] = expert
        place += blocks * block_m
    rows.fill_(place)
"""
PARALLEL = """
import torch
from sglang.srt.utils import ceil_div

assert ceil_div(5, 4) == 2
tma_align_input_scale = lambda scales: scales

def fused_moe_dispatch_index(chosen, experts, most):
    return torch.bincount(chosen.flatten(), minlength=experts).int(), None

def ep_scatter(codes, scales, chosen, padded, counts, starts, a, a_sf, of_row, places):
    assert int(padded.sum()) == len(a) == len(of_row) and counts.sum() == chosen.numel()
    starts.copy_(padded.cumsum(0) - padded)
    free = starts.clone()
    of_row.fill_(-1)
    for token, slot in torch.cartesian_prod(*map(torch.arange, chosen.shape)).tolist():
        expert = int(chosen[token, slot])
        row = int(free[expert])
        free[expert] += 1
        a.view(torch.uint8)[row], a_sf[row], of_row[row], places[token, slot] = codes.view(torch.uint8)[token], scales[token], expert, row

def post_reorder_deepgemm(rows, y, places, chosen, weights, topk, tokens, hidden, scale):
    assert (tokens, hidden) == tuple(y.shape) and topk == chosen.shape[1]
    y.copy_((rows[places.long()].float() * weights.unsqueeze(2)).sum(1) * scale)
"""
COUNTS = """
def pad_expert_counts(counts, block, rows):
    return (counts + block - 1) // block * block
"""
FUSED = """
import torch

def silu_and_mul_contig_post_quant(both, codes, scales, group):
    gate, up = both.float().chunk(2, 1)
    blocks = (torch.nn.functional.silu(gate) * up).view(len(both), -1, group)
    scales.copy_(blocks.abs().amax(2).clamp(min=1e-10) / 448)
    codes.copy_((blocks / scales.unsqueeze(2)).view_as(codes))
"""
DEEP_GEMM = """
import torch

wide = lambda codes, scales: codes.float() * scales.repeat_interleave(128, -1)

def m_grouped_fp8_gemm_nt_contiguous(a, b, d, experts):
    assert len(experts) % 128 == 0
    for expert in range(len(b[0])):
        rows = experts == expert
        d[rows] = (wide(a[0][rows], a[1][rows]) @ wide(b[0][expert], b[1][expert].repeat_interleave(128, 0)).T).to(d.dtype)
"""
FILES = {
    site.QUANTIZATION: QUANTIZE,
    site.MOE: MOE,
    site.ALIGNMENT: ALIGN,
    site.EXPERT_PARALLEL: PARALLEL,
    site.COUNTS: COUNTS,
    site.ACTIVATION: FUSED,
    "deep_gemm": DEEP_GEMM,
}


def write(folder: Path, **files: str) -> None:
    """Modules by their dotted names."""
    for name, text in files.items():
        path = folder / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def theirs(name: str) -> bool:
    """Whether a module is one of the wheel's, or stands in for Triton."""
    return name.partition(".")[0] in ("sglang", "deep_gemm", "triton")


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with `FILES`, and an interpreter that forgets after the test what was imported from it."""
    write(tmp_path, **FILES)
    monkeypatch.setattr(site, "cuda_toolkit", lambda: None)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if theirs(name)}
    language: Any = ModuleType("triton.language")
    language.bfloat16 = "bfloat16"
    triton: Any = ModuleType("triton")
    triton.language = language
    sys.modules.update({"triton": triton, "triton.language": language})
    yield tmp_path
    for name in list(filter(theirs, sys.modules)):
        del sys.modules[name]
    sys.modules.update(before)
