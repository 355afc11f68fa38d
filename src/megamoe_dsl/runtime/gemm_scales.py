"""Scales of a GEMM's operands: what they must be, and how a kernel reads them; and weights as it reads them, made once."""

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
from .buffers import Wanted, check_dims
from .custom_op import takes_tensors
from .symmetric_memory import device_arch

TMA_ALIGNMENT = 16
"""Bytes, of what TMA reads."""
ATOM_ROWS = 128
BYTES_PER_WORD = 4
SCALE_DTYPES = (torch.uint8, torch.float8_e8m0fnu, torch.int32)
"""What UE8M0 scales may be: bytes, or words of them."""


def kernel_scales(sf: torch.Tensor) -> torch.Tensor:
    """Scales of weights as the kernels read them: FP32, or none, as they are, UE8M0 in words."""
    return sf if sf.dtype == torch.float32 else scale_words(sf)


def token_scales(a_sf: torch.Tensor) -> torch.Tensor:
    """Scales of A as a GEMM reads them, copied where they are not yet so, in rows of a K block: FP32 [k / 128, rows or more], UE8M0 int32
    [k / 128, rows] as `scale_words` makes them, of UE4M3 k / 64; `no_scales`."""
    rows = a_sf.flatten(0, -2)
    return by_block(scales_by_column(rows)) if a_sf.dtype == torch.float32 else scale_words(rows)


def by_block(a_sf: torch.Tensor) -> torch.Tensor:
    """All memory of FP32 scales that lie as `scales_by_column` has them, row by row of K; others as they are."""
    ld = a_sf.stride(1)
    return a_sf.T.as_strided((a_sf.shape[1], ld), (ld, 1)) if a_sf.dtype == torch.float32 else a_sf


def scales_by_column(a_sf: torch.Tensor) -> torch.Tensor:
    """FP32 scales of A as the kernel reads them: the same values with rows next to one another in memory.

    a_sf, float32 [m, k / 128], of any strides; the result has strides (1, m rounded up to a multiple of 4).  What has them, and
    begins at a multiple of 16 bytes, is returned as it is.
    """
    check_dims("a_sf", a_sf, 2, "[m, k / 128]")
    rows, blocks = a_sf.shape
    if has_kernel_strides(a_sf) and a_sf.data_ptr() % TMA_ALIGNMENT == 0:
        return a_sf
    padded = -(-max(rows, 1) // SCALE_STEP) * SCALE_STEP
    columns = torch.empty(blocks, padded, dtype=a_sf.dtype, device=a_sf.device)
    columns[:, :rows] = a_sf.T
    return columns[:, :rows].T


def has_kernel_strides(a_sf: torch.Tensor) -> bool:
    """Whether TMA takes the scales as they are."""
    rows, blocks = a_sf.shape
    ld = a_sf.stride(1)
    return (rows <= 1 or a_sf.stride(0) == 1) and ld % SCALE_STEP == 0 and ld >= rows and (blocks == 1 or ld > 0)


def scale_words(sf: torch.Tensor) -> torch.Tensor:
    """Scales of a byte as the kernel reads them: four of a row in a word, words of all rows next to one another, in the order of UTCCP.

    sf, uint8 or float8_e8m0fnu [..., rows, k / 32] or float8_e4m3fn [..., rows, k / 16], k a multiple of 128; the result is int32
    [..., words of a row, rows rounded up to a multiple of 128].  What is int32, or `no_scales`, is returned as it is.
    """
    if sf.dim() < 2:
        raise ProblemError("sf.shape", tuple(sf.shape), "[..., rows, scales of a row]")
    if sf.dtype == torch.int32 or not sf.shape[-1]:
        return sf
    *lead, rows, count = sf.shape
    padded = torch.nn.functional.pad(sf.view(torch.uint8), (0, 0, 0, rows_of_words(rows) - rows))
    return utccp_scale_order(padded).view(*lead, count // BYTES_PER_WORD, rows_of_words(rows))


def scale_bytes(sf: torch.Tensor) -> torch.Tensor:
    """Scales from `scale_words`, uint8 [..., rows rounded up, k / 32]; others as they are."""
    if sf.dtype != torch.int32:
        return sf
    *lead, words, rows = sf.shape
    return inverse_utccp_scale_order(sf.reshape(-1, rows), torch.Size(lead).numel()).view(*lead, rows, words * BYTES_PER_WORD)


def gate_up_words(sf: torch.Tensor, gate_up: str) -> torch.Tensor:
    """`scale_words` of rows that lie in B as `gate_up` says, in the order in which the kernel of SM100 loads them: 8 of the first half,
    8 of the second.  What is int32 is returned as it is."""
    if sf.dtype == torch.int32:
        return sf
    rows = sf.view(torch.uint8)
    apart = torch.cat([rows[..., ::2, :], rows[..., 1::2, :]], dim=-2) if gate_up == INTERLEAVED else rows
    return scale_words(interleave_gate_up(apart))


def gate_up_bytes(words: torch.Tensor, gate_up: str) -> torch.Tensor:
    """Scales from `gate_up_words`, of rows as they lie in B; others as they are."""
    if words.dtype != torch.int32:
        return words
    halves = interleave_gate_up(scale_bytes(words), inverse=True)
    return interleave_gate_up(halves, 1) if gate_up == INTERLEAVED else halves


def rows_of_words(rows: int) -> int:
    """Rounded up to whole atoms; one at least."""
    return -(-max(rows, 1) // ATOM_ROWS) * ATOM_ROWS


def given_scales(name: str, values: torch.Tensor, sf: torch.Tensor | None) -> torch.Tensor:
    """Scales that a caller gives, or `no_scales`, where there is a recipe without scales of such values.  Raises `ProblemError` for None
    beside others, and for values of no recipe."""
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
    """Rows that the capacity of a masked problem's groups is a multiple of: TMA fetches the scales of so many at least."""
    if not problem.formats.scaled:
        return 1
    return SCALE_STEP if problem.formats.promoted else ATOM_ROWS


def wanted_scales(
    problem: GemmProblem, lead: tuple[int, ...], a_sf: torch.Tensor, b_sf: torch.Tensor, *, words: bool = True
) -> dict[str, Wanted]:
    """What scales have to be where there are some.  `lead` is the shape of A's rows, whose scales of a byte may be `words` of all rows."""
    if not problem.formats.scaled:
        return {}
    if not problem.formats.promoted:
        every = (torch.Size(lead).numel(),) if words and a_sf.dtype == torch.int32 else lead
        return {"a_sf": wanted_bytes(problem, a_sf, every, words), "b_sf": wanted_bytes(problem, b_sf, problem.b_lead)}
    *groups, rows = problem.b_lead
    of_b = Wanted(torch.float32, (*groups, -(-rows // SCALE_BLOCK), problem.k_blocks))
    none = Wanted(torch.uint8, (*groups, rows, 0))
    return {"a_sf": Wanted(torch.float32, (*lead, problem.k_blocks), strided=True), "b_sf": none if problem.decodes else of_b}


def wanted_bytes(problem: GemmProblem, sf: torch.Tensor, rows: tuple[int, ...], words: bool = True) -> Wanted:
    """Scales of a byte of rows of this shape, or `words` of those of the last dimension, which TMA reads where they are."""
    if words and sf.dtype == torch.int32:
        return Wanted(torch.int32, (*rows[:-1], problem.k_words, rows_of_words(rows[-1])), TMA_ALIGNMENT)
    dtypes = (torch.float8_e4m3fn, torch.int32) if problem.formats.weights.scale == UE4M3 else SCALE_DTYPES
    return Wanted(dtypes if words else dtypes[:-1], (*rows, problem.k_words * BYTES_PER_WORD))


def check_no_scales(recipe: str, name: str, sf: torch.Tensor, rows: tuple[int, ...]) -> None:
    """Raises `ProblemError` unless these are `no_scales` of rows of this shape."""
    if tuple(sf.shape) != (*rows, 0):
        raise ProblemError(name, f"{sf.dtype} {tuple(sf.shape)}", f"None: {recipe} has no scales")


@takes_tensors("b", "b_sf")
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
    if b.dim() not in (2, 3) or b.shape[-1] == 0 or 2 * b.shape[-1] % SCALE_BLOCK:
        raise ProblemError("b.shape", tuple(b.shape), f"[n, k / 2] or [num_groups, n, k / 2], k a multiple of {SCALE_BLOCK}")
    blocks = {torch.uint8: MXFP4.channels, torch.float8_e8m0fnu: MXFP4.channels, torch.float8_e4m3fn: NVFP4.channels}
    if b_sf.dtype not in blocks:
        raise ProblemError("b_sf.dtype", b_sf.dtype, " or ".join(map(str, blocks)))
    expected = (*b.shape[:-1], 2 * b.shape[-1] // blocks[b_sf.dtype])
    if tuple(b_sf.shape) != expected:
        raise ProblemError("b_sf.shape", tuple(b_sf.shape), str(expected))
