"""Weights of a GEMM as the kernels of an architecture read them, made once."""

from __future__ import annotations

import torch

from ..arch import SM90, Arch
from ..blocks.gemm.problem import GATE_UP
from ..blocks.gemm.problem import SCALE_BLOCK as K_BLOCK
from ..hardware.packed_tile import TILE_ROWS, tiles_of
from ..problem import ProblemError
from ..quant import NVFP4_BLOCK, SCALE_BLOCK, pack_tiles, ue8m0_bytes
from ..target import find_arch
from .gemm_scales import gate_up_words, scale_words
from .symmetric_memory import device_arch


def gemm_weights(
    b: torch.Tensor, b_sf: torch.Tensor, arch: Arch | str | None = None, *, gate_up: str = ""
) -> tuple[torch.Tensor, torch.Tensor]:
    """(b, b_sf) of `gemm` and `grouped_gemm`, made from weights as checkpoints have them.

    b     E2M1 uint8 [N, K / 2] or [G, N, K / 2], two in a byte, low nibble first; K a multiple of 128.  float8_e4m3fn is returned as it is
    b_sf  UE8M0 uint8 or float8_e8m0fnu [..., N, K / 32]; FP32 of float8_e4m3fn is returned as it is
    arch  sm_90a or sm_100a; by default that of the GPU that b is on
    gate_up  of `moe`'s w1 on sm_100a, how its rows are gate and up: gate_first, up_first, interleaved; sm_90a needs no other scales for it

    sm_90a    uint8 [..., ceil(N / 256), K / 128, 17408]: tiles of 256 rows with their scales, exact (quant/packed_tiles.py), 4.25 bits a
              value; and uint8 [..., N, 0], as no scale is left outside of them
    sm_100a   b itself, and `scale_words` of b_sf, or `gate_up_words`; b_sf of NVFP4 is float8_e4m3fn [..., N, K / 16]

    Raises `ProblemError` for arguments that do not fit, and `PackedWeightsError` for scales that SM90 cannot apply exactly.
    """
    if gate_up not in GATE_UP:
        raise ProblemError("gate_up", gate_up, "one of " + ", ".join(GATE_UP[1:]) + ", or empty")
    if b.dtype == torch.float8_e4m3fn:
        return b, b_sf if b_sf.dtype == torch.float32 else words_of(b_sf, gate_up)
    check_given(b, b_sf)
    nvfp4 = b_sf.dtype == torch.float8_e4m3fn
    if arch is None and b.device.type != "cuda":
        raise ProblemError("arch", None, f"given for a tensor on {b.device}")
    found = device_arch(b.device) if arch is None else find_arch(arch) if isinstance(arch, str) else arch
    if found == SM90 and nvfp4:
        raise ProblemError("b_sf.dtype", b_sf.dtype, f"torch.uint8 or torch.float8_e8m0fnu for {SM90}")
    if found != SM90:
        return b, words_of(b_sf, gate_up)
    *lead, n, _ = b.shape
    padding = (0, 0, 0, tiles_of(n) * TILE_ROWS - n)
    codes, scales = (torch.nn.functional.pad(one.reshape(-1, *one.shape[-2:]), padding) for one in (b, ue8m0_bytes(b_sf)))
    tiles = pack_tiles(codes, scales, "b")
    return tiles.view(*lead, *tiles.shape[1:]), b.new_empty(*lead, n, 0)


def words_of(b_sf: torch.Tensor, gate_up: str) -> torch.Tensor:
    """Scales of a byte in words, in the order of the rows of B as the kernel loads them."""
    return gate_up_words(b_sf, gate_up) if gate_up else scale_words(b_sf)


def check_given(b: torch.Tensor, b_sf: torch.Tensor) -> None:
    """Raises `ProblemError` unless these are weights as checkpoints have them."""
    if b.dtype != torch.uint8:
        raise ProblemError("b.dtype", b.dtype, "torch.uint8, two E2M1 a byte, or torch.float8_e4m3fn")
    if b.dim() not in (2, 3) or b.shape[-1] == 0 or 2 * b.shape[-1] % K_BLOCK:
        raise ProblemError("b.shape", tuple(b.shape), f"[n, k / 2] or [num_groups, n, k / 2], k a multiple of {K_BLOCK}")
    blocks = {torch.uint8: SCALE_BLOCK, torch.float8_e8m0fnu: SCALE_BLOCK, torch.float8_e4m3fn: NVFP4_BLOCK}
    if b_sf.dtype not in blocks:
        raise ProblemError("b_sf.dtype", b_sf.dtype, " or ".join(map(str, blocks)))
    expected = (*b.shape[:-1], 2 * b.shape[-1] // blocks[b_sf.dtype])
    if tuple(b_sf.shape) != expected:
        raise ProblemError("b_sf.shape", tuple(b_sf.shape), str(expected))
