"""Gradients of weights in E4M3, as operators: BF16 rows quantized along rows and columns in one pass, and a varlen-K grouped GEMM.

    x, dy = quantize_both(x, sources, rows=False), quantize_both(dy)
    dw = k_grouped_gemm(dy.codes_t, dy.scales_t, x.codes_t, x.scales_t, ends)

FP8 on Hopper, MXFP8 on Blackwell; launches on torch's current stream, without synchronization.  The first call of a shape compiles its
kernel or loads it.  CPU tensors take the reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from ..blocks.gemm.problem import SCALE_BLOCK, VarlenKProblem
from ..hardware.operand_tile import CHANNELS_PER_SCALE
from ..kernels.expert_routing.problem import MOST_SLOTS, QuantizeProblem
from ..problem import ProblemError, integer_between
from ..quant import quantize
from ..recipe import RECIPES
from ..reference import Accumulate, scaled_matmul
from .buffers import check_dims, check_tensor
from .custom_op import check_no_gradient, define_stage, takes_tensors
from .device_gemm import check_current, loaded_kernel
from .device_gradients import FP8, launch_kernel, recipe_of, run_gemm
from .gemm_scales import TMA_ALIGNMENT, rows_of_words, scale_bytes, scale_words
from .gemm_tensors import OUTPUTS, GemmTensors

Quantized = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Codes and scales along channels, then along rows."""


class QuantizedBoth(NamedTuple):
    """Rows in E4M3, rounded as by `quantize_e4m3_f32`, in MXFP8 by `quantize_e4m3`.

    codes, scales      float8_e4m3fn [rows, hidden] and float32 [rows, hidden / 128], strided as by `scales_by_column`; None with rows=False
    codes_t, scales_t  float8_e4m3fn [hidden, rows] and float32 [rows / 128, hidden]

    Scales of MXFP8 are `scale_words`, int32 [hidden / 128, rows] and [rows / 128, hidden].
    """

    codes: torch.Tensor | None
    scales: torch.Tensor | None
    codes_t: torch.Tensor
    scales_t: torch.Tensor


class PaddedRows(NamedTuple):
    """Rows of groups, each group padded to a multiple of 128.

    ends     int32 [G]: where each group's rows end, padding included
    sources  int32 [most]: the original row of each padded row, -1 for padding; `most` is an upper bound, a multiple of 128
    places   int32 [rows]: the padded row of each row; -1 behind the last group
    """

    ends: torch.Tensor
    sources: torch.Tensor
    places: torch.Tensor


@takes_tensors("ends")
def padded_rows(ends: torch.Tensor, rows: int) -> PaddedRows:
    """Pads each group of `rows` rows, sorted by group, to a multiple of 128, for `quantize_both` and `k_grouped_gemm`; no host sync.

    ends  int32 [G]: where each group's rows end, at most `rows`
    """
    check_tensor("ends", ends, torch.int32, (max(ends.numel(), 1),), ends.device)
    rows = integer_between("rows", rows, 0, MOST_SLOTS, f"between 0 and {MOST_SLOTS}")
    most = most_padded(len(ends), rows)
    starts = torch.nn.functional.pad(ends[:-1], (1, 0))
    filled = (ends - starts + SCALE_BLOCK - 1) // SCALE_BLOCK * SCALE_BLOCK
    padded = filled.cumsum(0, dtype=torch.int32)
    numbers = torch.arange(rows, dtype=torch.int32, device=ends.device)
    groups = torch.searchsorted(ends, numbers, right=True).clamp_(max=len(ends) - 1)
    places = torch.where(numbers < ends[-1], numbers + (padded - filled - starts)[groups], -1)
    # Rows behind the last group go to the last entry, which is cut off.
    sources = ends.new_full((most + 1,), -1).index_put_((places.long(),), numbers)
    return PaddedRows(padded, sources[:most], places)


def most_padded(groups: int, rows: int) -> int:
    """An upper bound of padded rows, for `rows` rows in `groups` groups."""
    return (rows + min(groups, rows) * (SCALE_BLOCK - 1)) // SCALE_BLOCK * SCALE_BLOCK


def numbers_of(places: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """numbers[places], and -1 where a place is -1."""
    return torch.cat((numbers, numbers.new_full((1,), -1)))[places]


@takes_tensors("x", optional=("sources",))
def quantize_both(x: torch.Tensor, sources: torch.Tensor | None = None, *, rows: bool = True, recipe: str = FP8) -> QuantizedBoth:
    """Quantizes rows of x along channels and along rows, in one pass of a kernel.

    x        bfloat16 [tokens, hidden], hidden a multiple of 128
    sources  int32 [rows], rows a multiple of 128: the token of each row, or -1 for a row of zeros; by default rows are tokens
    rows     whether to quantize along channels, too
    recipe   fp8xfp8, or on Blackwell mxfp8xmxfp8

    Raises `ProblemError` before any launch.
    """
    check_no_gradient(("x",), (x,))
    check_dims("x", x, 2, "[tokens, hidden]")
    check_tensor("x", x, torch.bfloat16, tuple(x.shape), x.device, TMA_ALIGNMENT)
    problem = QuantizeProblem(x.shape[1], sources is not None, rows, recipe)
    count = len(x) if sources is None else sources.numel()
    problem.check_rows(count, "x.shape[0]" if sources is None else "sources.shape[0]")
    if sources is not None:
        check_tensor("sources", sources, torch.int32, (count,), x.device)
    return quantized(x, sources, rows, recipe)


def quantized(x: torch.Tensor, sources: torch.Tensor | None, rows: bool, recipe: str = FP8) -> QuantizedBoth:
    """`quantize_both` of tensors that have been checked."""
    codes, scales, codes_t, scales_t = quantize_columns(x, sources, rows, recipe)
    own = scales.T if recipe == FP8 else scales
    return QuantizedBoth(codes, own, codes_t, scales_t) if rows else QuantizedBoth(None, None, codes_t, scales_t)


@takes_tensors("left", "left_sf", "right", "right_sf", "ends", optional=("out",))
def k_grouped_gemm(
    left: torch.Tensor,
    left_sf: torch.Tensor,
    right: torch.Tensor,
    right_sf: torch.Tensor,
    ends: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """D[g] = (left * left_sf) @ (right * right_sf)^T over the columns of each group g, promoted to FP32 every 128 columns: the gradient of
    weights of a grouped GEMM.

    left, right        float8_e4m3fn [N, M] and [K, M], columns sorted by group; M a multiple of 128, N and K of 32
    left_sf, right_sf  float32 [M / 128, N] and [M / 128, K], from `quantize_both`; of MXFP8 int32, N and K rounded up to 128
    ends               int32 [G]: where each group's columns end, a multiple of 128; columns past the last end are ignored
    out                bfloat16 [G, N, K], or float32, to which sums are added; a new tensor by default
    out_dtype          bfloat16 or float32, without `out`

    Deterministic.  Raises `ProblemError` before any launch.
    """
    check_no_gradient(("left_sf", "right_sf", "out"), (left_sf, right_sf, out))
    check_dims("left", left, 2, "[columns, rows of groups]")
    check_dims("right", right, 2, "[columns, rows of groups]")
    dtype = out_dtype if out is None else out.dtype
    if dtype not in OUTPUTS:
        raise ProblemError("out.dtype", dtype, " or ".join(map(str, OUTPUTS)))
    if out is None:
        out = left.new_zeros((ends.numel(), len(left), len(right)), dtype=dtype)
    problem, rows = _problem(out, left, left_sf, right), left.shape[1]
    if problem.check_rows(rows, "left.shape[1]") % SCALE_BLOCK:
        raise ProblemError("left.shape[1]", rows, f"a multiple of {SCALE_BLOCK}")
    for name, codes, scales in (("left", left, left_sf), ("right", right, right_sf)):
        kind, width = (torch.float32, len(codes)) if problem.formats.promoted else (torch.int32, rows_of_words(len(codes)))
        check_tensor(name, codes, torch.float8_e4m3fn, (len(codes), rows), left.device, TMA_ALIGNMENT)
        check_tensor(f"{name}_sf", scales, kind, (rows // SCALE_BLOCK, width), left.device, TMA_ALIGNMENT)
    check_tensor("out", out, dtype, (problem.num_groups, problem.n, problem.k), left.device, TMA_ALIGNMENT)
    check_tensor("ends", ends, torch.int32, (problem.num_groups,), left.device)
    add_columns(out, left, left_sf, right, right_sf, ends)
    return out


def _problem(out: torch.Tensor, left: torch.Tensor, left_sf: torch.Tensor, right: torch.Tensor) -> VarlenKProblem:
    accumulate, recipe = out.dtype == torch.float32, recipe_of(left, left_sf)
    return VarlenKProblem(
        len(left), len(right), num_groups=len(out), output=OUTPUTS[out.dtype], accumulate=accumulate, recipe=recipe, gathered=""
    )


def _new_both(x: torch.Tensor, sources: torch.Tensor | None, rows: bool, recipe: str) -> Quantized:
    count, hidden = len(x) if sources is None else sources.numel(), x.shape[1]
    of_rows, scales = count if rows else 0, torch.float32 if recipe == FP8 else torch.int32
    return (
        x.new_empty((of_rows, hidden), dtype=torch.float8_e4m3fn),
        x.new_empty((hidden // SCALE_BLOCK, of_rows), dtype=scales),
        x.new_empty((hidden, count), dtype=torch.float8_e4m3fn),
        x.new_empty((count // SCALE_BLOCK, hidden), dtype=scales),
    )


def _quantize_on_cpu(x: torch.Tensor, sources: torch.Tensor | None, rows: bool, recipe: str) -> Quantized:
    if sources is not None and len(sources) and not -1 <= int(sources.min()) <= int(sources.max()) < len(x):
        raise ProblemError("sources", [int(sources.min()), int(sources.max())], f"-1, or tokens below {len(x)}")
    taken = x if sources is None else torch.nn.functional.pad(x, (0, 0, 0, 1))[sources.long()]  # a row of zeros for -1
    form, sides = RECIPES[recipe].activations, (taken if rows else taken[:0], taken.T.contiguous())
    found = [quantize(one, form, check=False) for one in sides]
    scales = [(sf.T if recipe == FP8 else scale_words(sf)[:, : len(one)]).contiguous() for one, sf in found]
    return found[0][0], scales[0], found[1][0], scales[1]


def _quantize_on_gpu(x: torch.Tensor, sources: torch.Tensor | None, rows: bool, recipe: str) -> Quantized:
    check_current(x.device, "x.device")
    made = _new_both(x, sources, rows, recipe)
    if count := made[2].shape[1]:
        given = {"x": x, **dict(zip(("codes", "scales", "codes_t", "scales_t"), made, strict=True))}
        kernel = loaded_kernel(x.device, QuantizeProblem, x.shape[1], sources is not None, rows, recipe)
        launch_kernel(kernel, given if sources is None else {**given, "sources": sources}, {"sources": 0, "num_rows": count})
    return made


Side = tuple[torch.Tensor, torch.Tensor]
"""Codes of a transposed operand, and their scales."""


def sides_of_groups(left: Side, right: Side, ends: Sequence[int]) -> Iterator[tuple[torch.Tensor, ...]]:
    """Left, its scales in rows, right and its scales of each group: operands of `reference.scaled_matmul`."""
    if left[1].dtype == torch.int32:
        sides, step = [(codes, scale_bytes(words)[: len(codes)]) for codes, words in (left, right)], CHANNELS_PER_SCALE
    else:
        sides, step = [(codes, sf.T) for codes, sf in (left, right)], SCALE_BLOCK
    for first, end in pairwise([0, *ends]):
        yield tuple(one.contiguous() for codes, sf in sides for one in (codes[:, first:end], sf[:, first // step : end // step]))


def _add_on_cpu(out: torch.Tensor, *given: torch.Tensor) -> None:
    left, left_sf, right, right_sf, ends = given
    columns, listed = left.shape[1], ends.tolist()
    if columns and any(not first <= end <= columns or end % SCALE_BLOCK for first, end in pairwise([0, *listed])):
        raise ProblemError("ends", listed, f"multiples of {SCALE_BLOCK} in ascending order, at most left.shape[1] = {columns}")
    accumulate: Accumulate = torch.float64 if left_sf.dtype == torch.int32 else "hopper"
    groups = sides_of_groups((left, left_sf), (right, right_sf), listed)
    sums = torch.stack([scaled_matmul(a, a_sf, b, b_sf, accumulate) for a, a_sf, b, b_sf in groups])
    out.copy_(out + sums if out.dtype == torch.float32 else sums)


def _add_on_gpu(
    out: torch.Tensor, left: torch.Tensor, left_sf: torch.Tensor, right: torch.Tensor, right_sf: torch.Tensor, ends: torch.Tensor
) -> None:
    check_current(out.device, "left.device")
    if left.shape[1]:
        run_gemm(_problem(out, left, left_sf, right), GemmTensors(left, left_sf, right, right_sf, out, ends))
    elif out.dtype == torch.bfloat16:
        out.zero_()


quantize_columns = define_stage("quantize_both", _quantize_on_gpu, _quantize_on_cpu, _new_both)
add_columns = define_stage("k_grouped_gemm", _add_on_gpu, _add_on_cpu, lambda *_: None, writes=("out",))
"""`k_grouped_gemm` of checked tensors."""
