"""Scales of a GEMM's operands: their checks and the layouts that kernels read; `gemm_weights`, which prepares weights once."""

from __future__ import annotations

import torch

from ..arch import SM90, Arch
from ..blocks.gemm.problem import GATE_UP, INTERLEAVED, SCALE_BLOCK, GemmProblem
from ..blocks.gemm.tile import SCALE_STEP
from ..hardware.packed_tile import TILE_ROWS, tiles_of
from ..problem import ProblemError
from ..quant import interleave_gate_up, inverse_utccp_scale_order, no_scales, pack_tiles, ue8m0_bytes, utccp_scale_order
from ..quant.weights import TORCH_DTYPES
from ..recipe import MXFP4, NVFP4, RECIPES, UE4M3
from ..target import find_arch
from .buffers import check_dims, check_tensor
from .custom_op import takes_tensors
from .symmetric_memory import device_arch

TMA_ALIGNMENT = 16
"""Bytes, of what TMA reads."""
ATOM_ROWS = 128
BYTES_PER_WORD = 4
SCALE_DTYPES = (torch.uint8, torch.float8_e8m0fnu, torch.int32)
"""UE8M0 scales: bytes, or words of four."""


def kernel_scales(sf: torch.Tensor) -> torch.Tensor:
    """Scales of weights as the kernels read them: UE8M0 bytes become words, others are returned unchanged."""
    return sf if sf.dtype == torch.float32 else scale_words(sf)


def token_scales(a_sf: torch.Tensor) -> torch.Tensor:
    """Scales of A as a GEMM reads them, by K block; copied if in another layout.  FP32 [k / 128, rows or more]; int32 `scale_words`,
    [k / 128, rows] of UE8M0, [k / 64, rows] of UE4M3; `no_scales`."""
    rows = a_sf.flatten(0, -2)
    return by_block(scales_by_column(rows)) if a_sf.dtype == torch.float32 else scale_words(rows)


def by_block(a_sf: torch.Tensor) -> torch.Tensor:
    """FP32 scales from `scales_by_column` as [k / 128, leading dimension], padding included; others unchanged."""
    ld = a_sf.stride(1)
    return a_sf.T.as_strided((a_sf.shape[1], ld), (ld, 1)) if a_sf.dtype == torch.float32 else a_sf


def scales_by_column(a_sf: torch.Tensor) -> torch.Tensor:
    """FP32 scales of A, float32 [m, k / 128], as the kernel reads them: column-major.  The result has strides (1, m rounded up to a
    multiple of 4); a tensor with these strides that is 16-byte aligned is returned unchanged."""
    check_dims("a_sf", a_sf, 2, "[m, k / 128]")
    rows, blocks = a_sf.shape
    if has_kernel_strides(a_sf) and a_sf.data_ptr() % TMA_ALIGNMENT == 0:
        return a_sf
    padded = -(-max(rows, 1) // SCALE_STEP) * SCALE_STEP
    columns = torch.empty(blocks, padded, dtype=a_sf.dtype, device=a_sf.device)
    columns[:, :rows] = a_sf.T
    return columns[:, :rows].T


def has_kernel_strides(a_sf: torch.Tensor) -> bool:
    """Whether TMA can read the scales without a copy."""
    rows, blocks = a_sf.shape
    ld = a_sf.stride(1)
    return (rows <= 1 or a_sf.stride(0) == 1) and ld % SCALE_STEP == 0 and ld >= rows and (blocks == 1 or ld > 0)


def scale_words(sf: torch.Tensor) -> torch.Tensor:
    """One-byte scales as the kernel reads them: four scales of a row in a word, words of all rows contiguous, in UTCCP order.

    sf is uint8 or float8_e8m0fnu [..., rows, k / 32] or float8_e4m3fn [..., rows, k / 16], k a multiple of 128; the result is int32
    [..., words of a row, rows rounded up to a multiple of 128].  int32 and `no_scales` are returned unchanged.
    """
    if sf.dim() < 2:
        raise ProblemError("sf.shape", tuple(sf.shape), "[..., rows, scales of a row]")
    if sf.dtype == torch.int32 or not sf.shape[-1]:
        return sf
    *lead, rows, count = sf.shape
    padded = torch.nn.functional.pad(sf.view(torch.uint8), (0, 0, 0, rows_of_words(rows) - rows))
    return utccp_scale_order(padded).view(*lead, count // BYTES_PER_WORD, rows_of_words(rows))


def scale_bytes(sf: torch.Tensor) -> torch.Tensor:
    """Inverse of `scale_words`: uint8 [..., rows rounded up, k / 32]; others unchanged."""
    if sf.dtype != torch.int32:
        return sf
    *lead, words, rows = sf.shape
    return inverse_utccp_scale_order(sf.reshape(-1, rows), torch.Size(lead).numel()).view(*lead, rows, words * BYTES_PER_WORD)


def gate_up_words(sf: torch.Tensor, gate_up: str) -> torch.Tensor:
    """`scale_words` of B's rows, which are ordered as `gate_up` says, in the order that the SM100 kernel loads: 8 of the first half, 8 of
    the second.  int32 is returned unchanged."""
    if sf.dtype == torch.int32:
        return sf
    rows = sf.view(torch.uint8)
    apart = torch.cat([rows[..., ::2, :], rows[..., 1::2, :]], dim=-2) if gate_up == INTERLEAVED else rows
    return scale_words(interleave_gate_up(apart))


def gate_up_bytes(words: torch.Tensor, gate_up: str) -> torch.Tensor:
    """Inverse of `gate_up_words`, in the order of B's rows; others unchanged."""
    if words.dtype != torch.int32:
        return words
    halves = interleave_gate_up(scale_bytes(words), inverse=True)
    return interleave_gate_up(halves, 1) if gate_up == INTERLEAVED else halves


def rows_of_words(rows: int) -> int:
    """Rounded up to whole atoms, at least one."""
    return -(-max(rows, 1) // ATOM_ROWS) * ATOM_ROWS


def given_scales(name: str, values: torch.Tensor, sf: torch.Tensor | None) -> torch.Tensor:
    """A caller's scales; `no_scales` for None beside bfloat16.  Raises `ProblemError` for None beside other values, and for a dtype of no
    recipe."""
    if sf is not None:
        return sf
    unscaled = [TORCH_DTYPES[one.activations.element] for one in RECIPES.values() if not one.scaled]
    if values.dtype in unscaled:
        return no_scales(values)
    dtypes = {TORCH_DTYPES[one.element]: None for recipe in RECIPES.values() for one in (recipe.activations, recipe.weights)}
    if values.dtype not in dtypes:
        raise ProblemError(f"{name.removesuffix('_sf')}.dtype", values.dtype, " or ".join(map(str, dtypes)))
    raise ProblemError(name, None, f"scales beside {values.dtype}; only {' or '.join(map(str, unscaled))} has none")


def capacity_step(problem: GemmProblem) -> int:
    """The capacity of a masked problem's groups is a multiple of this number of rows, whose scales TMA fetches together."""
    if not problem.formats.scaled:
        return 1
    return SCALE_STEP if problem.formats.promoted else ATOM_ROWS


def check_scales(problem: GemmProblem, lead: tuple[int, ...], a_sf: torch.Tensor, b_sf: torch.Tensor, device: torch.device) -> None:
    """Raises `ProblemError` for scales of a dense or grouped problem that do not fit; `lead` is the shape of A's rows."""
    *groups, rows = problem.b_lead
    if not problem.formats.scaled:
        check_no_scales(problem.recipe, "a_sf", a_sf, lead)
        check_no_scales(problem.recipe, "b_sf", b_sf, problem.b_lead)
    elif problem.formats.promoted:
        check_tensor("a_sf", a_sf, torch.float32, (*lead, problem.k_blocks), device, strided=True)
        of_b = (torch.uint8, (*groups, rows, 0)) if problem.decodes else (torch.float32, (*groups, problem.scale_rows, problem.k_blocks))
        check_tensor("b_sf", b_sf, *of_b, device)
    else:
        every = (torch.Size(lead).numel(),)
        check_bytes(problem, "a_sf", a_sf, every if a_sf.dtype == torch.int32 else lead, device)
        check_bytes(problem, "b_sf", b_sf, problem.b_lead, device)


def check_bytes(problem: GemmProblem, name: str, sf: torch.Tensor, rows: tuple[int, ...], device: torch.device) -> None:
    """Checks one-byte scales of rows of this shape, or `scale_words` of them, which TMA reads without a copy.  Raises `ProblemError`."""
    if sf.dtype == torch.int32:
        shape = (*rows[:-1], problem.k_words, rows_of_words(rows[-1]))
        check_tensor(name, sf, torch.int32, shape, device, TMA_ALIGNMENT)
        return
    dtypes = (torch.float8_e4m3fn, torch.int32) if problem.formats.weights.scale == UE4M3 else SCALE_DTYPES
    check_tensor(name, sf, dtypes, (*rows, problem.k_words * BYTES_PER_WORD), device)


def check_no_scales(recipe: str, name: str, sf: torch.Tensor, rows: tuple[int, ...]) -> None:
    """Raises `ProblemError` unless `sf` is `no_scales` of rows of this shape."""
    if tuple(sf.shape) != (*rows, 0):
        raise ProblemError(name, f"{sf.dtype} {tuple(sf.shape)}", f"None: {recipe} has no scales")


@takes_tensors("b", "b_sf")
def gemm_weights(
    b: torch.Tensor, b_sf: torch.Tensor, arch: Arch | str | None = None, *, gate_up: str = ""
) -> tuple[torch.Tensor, torch.Tensor]:
    """(b, b_sf) of `gemm` and `grouped_gemm`, made from weights as checkpoints have them.

    b     E2M1 uint8 [N, K / 2] or [G, N, K / 2], two in a byte, low nibble first; K a multiple of 128.  float8_e4m3fn stays unchanged
    b_sf  UE8M0 uint8 or float8_e8m0fnu [..., N, K / 32]; NVFP4 float8_e4m3fn [..., N, K / 16].  FP32 beside float8_e4m3fn stays unchanged
    arch  sm_90a or sm_100a; by default that of b's GPU
    gate_up  for `moe`'s w1 on sm_100a, the order of its rows: gate_first, up_first, interleaved; sm_90a ignores it

    sm_90a    uint8 [..., ceil(N / 256), K / 128, 17408]: tiles of 256 rows that contain their scales, exact (quant/packed_tiles.py), 4.25
              bits a value; and uint8 [..., N, 0] in place of scales
    sm_100a   b itself, and `scale_words` of b_sf, or `gate_up_words`

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
    """One-byte scales as words, in the order in which the kernel loads B's rows."""
    return gate_up_words(b_sf, gate_up) if gate_up else scale_words(b_sf)


def check_given(b: torch.Tensor, b_sf: torch.Tensor) -> None:
    """Raises `ProblemError` unless these are E2M1 weights and scales as checkpoints have them."""
    if b.dtype != torch.uint8:
        raise ProblemError("b.dtype", b.dtype, "torch.uint8, two E2M1 a byte, or torch.float8_e4m3fn")
    if b.dim() not in (2, 3) or b.shape[-1] == 0 or 2 * b.shape[-1] % SCALE_BLOCK:
        raise ProblemError("b.shape", tuple(b.shape), f"[n, k / 2] or [num_groups, n, k / 2], k a multiple of {SCALE_BLOCK}")
    blocks = {torch.uint8: MXFP4.channels, torch.float8_e8m0fnu: MXFP4.channels, torch.float8_e4m3fn: NVFP4.channels}
    if b_sf.dtype not in blocks:
        raise ProblemError("b_sf.dtype", b_sf.dtype, " or ".join(map(str, blocks)))
    expected = (*b.shape[:-1], 2 * b.shape[-1] // blocks[b_sf.dtype])
    if tuple(b_sf.shape) != expected:
        raise ProblemError("b_sf.shape", tuple(b_sf.shape), str(expected))
