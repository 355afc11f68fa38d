"""Weight transforms: from checkpoint order to what the kernel loads, and back.

SM100    Linear1 rows alternate 8 gate and 8 up rows so that one thread of the epilogue holds both halves of a SwiGLU pair (article section
         4.5.4); weights lie in tiles; scale bytes take the order that `tcgen05.cp` (UTCCP) copies into tensor memory
SM90     Linear1 rows take the order of `order_rows_sm90`, for the same reason; weights lie in tiles.  E2M1 weights stay packed, in tiles
         that hold their scales too (`packed_tiles`)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self

import torch

from megamoe_dsl.hardware.cta_pair import BLOCK_N
from megamoe_dsl.hardware.operand_tile import ROW_BYTES
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant.formats import _require_dtype, no_scales, ue8m0_bytes
from megamoe_dsl.quant.packed_tiles import MatrixShape, pack_tiles, resize, tiled_shapes, unpack_tiles, weight_shapes
from megamoe_dsl.recipe import BF16, E2M1, E4M3, F32, UE4M3, UE8M0, ExpertFactors, Format

if TYPE_CHECKING:
    from megamoe_dsl.arch import Arch

WEIGHT_NAMES = ("fc1", "fc1_sf", "fc2", "fc2_sf")
"""Fields of `ExpertWeights` and of `TransformedWeights` that every layer has."""
BIAS_NAMES = ("fc1_bias", "fc2_bias")
"""Those of a layer with biases."""
OTHER_NAMES = (*BIAS_NAMES, "factors")
GATE_UP_GROUP = 8
TORCH_DTYPES: dict[str | None, torch.dtype] = {
    E4M3: torch.float8_e4m3fn,
    E2M1: torch.uint8,
    UE8M0: torch.uint8,
    UE4M3: torch.float8_e4m3fn,
    F32: torch.float32,
    BF16: torch.bfloat16,
    None: torch.uint8,
}
"""Of a recipe's elements and scales; two E2M1 share a byte.  None is the dtype of `no_scales`."""
_ATOM_ROWS = 128
_WORD_BYTES = 4


def checkpoint_layout(problem: Problem) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """dtype and shape of every field of `ExpertWeights` for the recipe of `problem`."""
    el, weights = problem.experts_per_rank, problem.formats.weights
    scale = TORCH_DTYPES[weights.scale]
    found: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    biases: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name, (parts, rows, k) in weight_shapes(problem).items():
        code, width = stored_row(weights, k)
        found[name] = code, (el, parts * rows, width)
        found[f"{name}_sf"] = scale, (el, parts * -(-rows // weights.rows), weights.scales_of(k))
        if problem.biases:
            biases[f"{name}_bias"] = torch.float32, (el, parts * rows)
    factors = {"factors": (torch.float32, (el, len(ExpertFactors._fields)))} if weights.factor else {}
    return found | biases | factors


def weight_names(problem: Problem) -> tuple[str, ...]:
    """Fields of `ExpertWeights` and of `TransformedWeights` that a layer has."""
    return (*WEIGHT_NAMES, *(BIAS_NAMES if problem.biases else ()), *(("factors",) if problem.formats.weights.factor else ()))


INDEX_DTYPES = (torch.int64, torch.int32)
"""Allowed dtypes of topk_idx; kernels read int64, so int32 is converted."""


def input_layout(problem: Problem) -> tuple[torch.dtype, int]:
    """Scales of the activations: their dtype and how many channels share one.  x_sf is [tokens, ceil(hidden / channels)], K-major rows."""
    activations = problem.formats.activations
    return TORCH_DTYPES[activations.scale], activations.channels


def stored_row(form: Format, channels: int) -> tuple[torch.dtype, int]:
    """A row of so many values in memory: dtype and length; of E2M1, two in a byte, half as long."""
    dtype = TORCH_DTYPES[form.element]
    return dtype, form.row_bytes(channels) // dtype.itemsize


def input_row(problem: Problem) -> tuple[torch.dtype, int]:
    """Rows of activations: dtype and length.  x is [tokens, hidden]; of E2M1, two in a byte, [tokens, hidden / 2]."""
    return stored_row(problem.formats.activations, problem.hidden)


@dataclass(frozen=True)
class LayerWeights:
    """Tensors of both linears of one rank's experts."""

    fc1: torch.Tensor
    fc1_sf: torch.Tensor
    fc2: torch.Tensor
    fc2_sf: torch.Tensor
    fc1_bias: torch.Tensor | None = None
    fc2_bias: torch.Tensor | None = None
    factors: torch.Tensor | None = None

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """What `change` makes of every tensor that is there."""
        return type(self)(**{name: change(tensor) for name, tensor in vars(self).items() if tensor is not None})


@dataclass(frozen=True)
class ExpertWeights(LayerWeights):
    """Weights of one rank's El experts in checkpoint order, H = hidden, I = intermediate.

    fp8xfp4, mxf4xmxf4 and fp8xmxfp4, all uint8:
        fc1 [El, 2I, H/2] packed E2M1, rows [gate | up]; fc1_sf [El, 2I, H/32] UE8M0; fc2 [El, H, I/2] packed E2M1; fc2_sf [El, H, I/32]
        UE8M0. Scales may be given as float8_e8m0fnu, and are viewed as uint8.
    fp8xfp8, float8_e4m3fn with float32 scales, of which the last of a row or column may cover fewer than 128:
        fc1 [El, 2I, H], rows [gate | up]; fc1_sf [El, 2 ceil(I/128), ceil(H/128)]; fc2 [El, H, I]; fc2_sf [El, ceil(H/128), ceil(I/128)].
    nvfp4xnvfp4: uint8 as fp8xfp4; fc1_sf float8_e4m3fn [El, 2I, H/16]; fc2_sf float8_e4m3fn [El, H, I/16]; factors float32 [El, 5], an
        expert's of `expert_factors` a row.
    bf16xbf16: those of `unscaled_weights`.
    With biases fc1_bias [El, 2I], rows [gate | up], and fc2_bias [El, H], float32; bfloat16 is converted, which is exact.

    NaN and infinities are not looked for (`finite`); see `runtime.buffers.check_weights`.
    """

    def __post_init__(self) -> None:
        for name in ("fc1_sf", "fc2_sf"):
            object.__setattr__(self, name, ue8m0_bytes(getattr(self, name)))
        for name in BIAS_NAMES:
            bias = getattr(self, name)
            if bias is not None and bias.dtype == torch.bfloat16:
                object.__setattr__(self, name, bias.float())

    def validate(self, problem: Problem) -> None:
        """Raise `ProblemError` naming the field when it is missing or not the problem's, or a dtype or a shape does not fit `problem`."""
        layout = checkpoint_layout(problem)
        for name in OTHER_NAMES:
            if (getattr(self, name) is None) == (name in layout):
                field = f"biases = {problem.biases}" if name in BIAS_NAMES else f"recipe = {problem.recipe}"
                value, allowed = (None, "a tensor") if name in layout else ("a tensor", "None")
                raise ProblemError(name, value, f"{allowed} of a problem with {field}")
        for name, (dtype, shape) in layout.items():
            tensor = getattr(self, name)
            _require_dtype(name, tensor, dtype)
            if tuple(tensor.shape) != shape:
                raise ProblemError(f"{name}.shape", tuple(tensor.shape), str(shape))

    def expert(self, index: int) -> "ExpertWeights":
        return self.map(lambda tensor: tensor[index : index + 1])

    def resized(self, problem: Problem, shapes: Mapping[str, MatrixShape]) -> "ExpertWeights":
        return ExpertWeights(**resize(problem, {name: getattr(self, name) for name in weight_names(problem)}, shapes))


class TransformedWeights(LayerWeights):
    """Weights of one rank as the kernel reads them: H and I here are those of whole tiles (packed_tiles.py).

    fp8xfp4 and mxf4xmxf4:
        fc1 uint8 [El, 2I, H/2] packed E2M1, rows alternating 8 gate, 8 up; fc1_sf int32 [El * (H/128), 2I]: expert outermost, then 128
        values of K, rows in UTCCP order within each 128; fc2 uint8 [El, H, I/2] packed E2M1, unchanged; fc2_sf int32 [El * (I/128), H], as
        fc1_sf.
    fp8xfp8:
        fc1 float8_e4m3fn [El, 2I/256, H/128, 256, 128]: tiles (`tile_sm90`) of rows in `order_rows_sm90` order; fc1_sf float32
        [El, 2I/128, H/128], unchanged: I/128 rows of gate blocks, then the up blocks; fc2 float8_e4m3fn [El, H/256, I/128, 256, 128],
        tiles; fc2_sf float32 [El, H/128, I/128], unchanged.
    fp8xmxfp4:
        fc1 uint8 [El, 2I/256, H/128, 17408] and fc2 uint8 [El, H/256, I/128, 17408]: tiles (`packed_tiles`), of fc1 in `order_rows_sm90`
        order; fc1_sf and fc2_sf uint8 [0]: the tiles have the scales.
    nvfp4xnvfp4: as fp8xfp4, with fc1_sf int32 [El * (H/64), 2I] and fc2_sf int32 [El * (I/64), H]; factors as in checkpoint order.
    bf16xbf16, whose fc1_sf and fc2_sf are empty:
        on SM90 fc1 bfloat16 [El, 2I/256, H/64, 256, 64] and fc2 [El, H/256, I/64, 256, 64]: tiles as of fp8xfp8, of fc1 in the order for
        BF16 outputs; on SM100 fc1 [El, 2I, H] and fc2 [El, H, I], rows of fc1 as of fp8xfp4.
    Biases are float32: fc1_bias [El, 2I] in the order of fc1's rows, fc2_bias [El, H].
    """


def regroup(w: torch.Tensor, dim: int, shape: tuple[int, ...], order: tuple[int, ...], inverse: bool = False) -> torch.Tensor:
    """Splits a dimension into `shape`, puts the parts into an order, and joins them again; `inverse` puts them back.  Contiguous."""
    if inverse:
        shape, order = tuple(shape[part] for part in order), tuple(map(order.index, range(len(order))))
    first = dim % w.ndim
    split = w.unflatten(first, shape)
    after = first + len(shape)
    parts = (*range(first), *(first + part for part in order), *range(after, split.ndim))
    return split.permute(parts).flatten(first, after - 1).contiguous()


def interleave_gate_up(w: torch.Tensor, group: int = GATE_UP_GROUP, dim: int = -2, inverse: bool = False) -> torch.Tensor:
    """Reorder the rows [gate | up] of dimension `dim` to `group` gate rows, `group` up rows, and so on: a new contiguous tensor.  Weights
    [El, 2I, H/2] and their scales [El, 2I, H/32] alike, of any dtype.  Raises `ProblemError` when the rows are no multiple of 2 * group."""
    rows = w.shape[dim]
    if group <= 0 or rows % (2 * group):
        raise ProblemError(f"w.shape[{dim}]", rows, f"a multiple of 2 * group = {2 * group}")
    return regroup(w, dim, (2, rows // (2 * group), group), (1, 0, 2), inverse)


def order_rows_sm90(w: torch.Tensor, inverse: bool = False, outputs: str = E4M3) -> torch.Tensor:
    """Reorder Linear1 rows [gate | up] to the tiles of the SM90 kernel: [..., 2I, K] to a contiguous tensor of the same shape.

    Each tile of 256 rows has the gate and up rows of 128 consecutive channels.  Row (group, block, warp, half, row) is the gate (half 0)
    or up (half 1) row of channel 16 (4 group + warp) + 2 row + block, of BF16 `outputs` of Linear1 + 8 block + row: a thread then holds
    gate and up of the same channels, and the Linear1 epilogue's transposed store, of 16 bits, puts the 128 outputs in natural order.
    """
    rows = w.shape[-2]
    if rows % 256:
        raise ProblemError("w.shape[-2]", rows, "a multiple of 256")
    # To tile, group, block, warp, half, row.
    if outputs == BF16:  # from half, tile, group, warp, block, row
        return regroup(w, -2, (2, rows // 256, 2, 4, 2, 8), (1, 2, 4, 3, 0, 5), inverse)
    return regroup(w, -2, (2, rows // 256, 2, 4, 8, 2), (1, 2, 5, 3, 0, 4), inverse)  # from half, tile, group, warp, row, block


def rows_sm90(problem: Problem) -> torch.Tensor:
    """int64 [rows of fc1 in whole tiles]: for each row of `order_rows_sm90` the row of [gate | up]."""
    parts, rows, _ = tiled_shapes(problem)["fc1"]
    return order_rows_sm90(torch.arange(parts * rows, device="cpu").view(-1, 1)).flatten()


def tile_sm90(w: torch.Tensor) -> torch.Tensor:
    """Cut [..., N, K] weights into the tiles that the SM90 kernel loads, 256 rows of 128 bytes, each contiguous: E4M3 [..., N / 256,
    K / 128, 256, 128], BF16 [..., N / 256, K / 64, 256, 64].
    """
    return _tiles(w, 256, ROW_BYTES)


def tile_sm100(w: torch.Tensor) -> torch.Tensor:
    """The same of what a CTA of a pair loads on SM100, 128 rows of 128 channels, or 64 of BF16: E4M3 [..., N / 128, K / 128, 128, 128],
    E2M1 [..., N / 128, K / 128, 128, 64], BF16 [..., N / 128, K / 64, 128, 64].  A stage of more channels has several tiles."""
    return _tiles(w, BLOCK_N, ROW_BYTES // 2 if w.dtype == TORCH_DTYPES[E2M1] else ROW_BYTES)


def _tiles(w: torch.Tensor, tile_rows: int, row_bytes: int) -> torch.Tensor:
    (rows, k), step = w.shape[-2:], row_bytes // w.itemsize
    if rows % tile_rows or k % step:
        raise ProblemError("w.shape[-2:]", (rows, k), f"multiples of {tile_rows} and {step}")
    tiles = w.reshape(*w.shape[:-2], rows // tile_rows, tile_rows, k // step, step).transpose(-3, -2)
    return tiles.reshape(-1).view(tiles.shape)  # strides as of new memory, also where one tile has all of K


def rows_of_tiles(tiles: torch.Tensor) -> torch.Tensor:
    """Puts tiles back into rows, the inverse of `tile_sm90` and `tile_sm100`."""
    n_tiles, k_tiles, rows, step = tiles.shape[-4:]
    return tiles.transpose(-3, -2).reshape(*tiles.shape[:-4], n_tiles * rows, k_tiles * step).contiguous()


def utccp_scale_order(sf: torch.Tensor) -> torch.Tensor:
    """Scale bytes, uint8 [..., rows, K/32], to the words of a UTCCP copy, int32 [prod(leading) * K/128, rows].

    Four consecutive K bytes share a word, lowest K in the lowest byte; words run along the rows; row m of each 128-row atom lands at word
    (m % 32) * 4 + m // 32.  Leading dimensions are experts.
    """
    _require_dtype("sf", sf, torch.uint8)
    rows, k_bytes = sf.shape[-2:]
    if rows % _ATOM_ROWS:
        raise ProblemError("sf.shape[-2]", rows, f"a multiple of {_ATOM_ROWS}, the rows of a UTCCP atom")
    if k_bytes % _WORD_BYTES:
        raise ProblemError("sf.shape[-1]", k_bytes, f"a multiple of {_WORD_BYTES}, the scales of 128 values")
    words = sf.contiguous().view(torch.int32).reshape(-1, rows // _ATOM_ROWS, 4, 32, k_bytes // _WORD_BYTES)
    # [batch, atom, m / 32, m % 32, K word] -> [batch, K word, atom, m % 32, m / 32]
    return words.permute(0, 4, 1, 3, 2).reshape(-1, rows).contiguous()


def inverse_utccp_scale_order(words: torch.Tensor, batch: int | None = None) -> torch.Tensor:
    """Inverse of `utccp_scale_order`: int32 [K/128, rows], or [batch * K/128, rows] of experts, to uint8 [rows, K/32] or [batch, ...]."""
    if words.dtype != torch.int32 or words.ndim != 2:
        raise ProblemError("words", f"{words.dtype} with {words.ndim} dimensions", f"{torch.int32} with 2")
    count, rows = words.shape
    groups = 1 if batch is None else batch
    if rows % _ATOM_ROWS:
        raise ProblemError("words.shape[1]", rows, f"a multiple of {_ATOM_ROWS}, the rows of a UTCCP atom")
    if groups <= 0 or count % groups:
        raise ProblemError("batch", groups, f"a divisor of words.shape[0] = {count}")
    k_words = count // groups
    plain = words.reshape(groups, k_words, rows // _ATOM_ROWS, 32, 4).permute(0, 2, 4, 3, 1).reshape(groups, rows, k_words)
    sf = plain.contiguous().view(torch.uint8)
    return sf[0] if batch is None else sf


def transform_weights(problem: Problem, arch: "Arch", weights: ExpertWeights) -> TransformedWeights:
    """Checkpoint weights of one rank to the layout of an architecture's kernel (module docstring).  Tensors that do not change are passed
    through.  Raises `ProblemError` naming the field, its shape or dtype and what `problem` asks for."""
    weights.validate(problem)
    given = weights.resized(problem, tiled_shapes(problem))
    fc1, fc1_sf, fc2, fc2_sf, rows = given.fc1, given.fc1_sf, given.fc2, given.fc2_sf, partial(order_fc1, problem, arch)
    biases = (None if given.fc1_bias is None else rows(given.fc1_bias.unsqueeze(-1)).squeeze(-1)), given.fc2_bias
    if not arch.has_tensor_memory and problem.formats.weights.element == E2M1:
        tiles = pack_tiles(fc1, fc1_sf, "fc1", rows_sm90(problem)), pack_tiles(fc2, fc2_sf, "fc2")
        return TransformedWeights(tiles[0], fc1_sf.new_empty(0), tiles[1], fc2_sf.new_empty(0), *biases)
    if not arch.has_tensor_memory:
        return TransformedWeights(tile_sm90(rows(fc1)), fc1_sf, tile_sm90(fc2), fc2_sf, *biases)
    if problem.formats.scaled:
        fc1_sf, fc2_sf = utccp_scale_order(rows(fc1_sf.view(torch.uint8))), utccp_scale_order(fc2_sf.view(torch.uint8))
    return TransformedWeights(tile_sm100(rows(fc1)), fc1_sf, tile_sm100(fc2), fc2_sf, *biases, weights.factors)


def order_fc1(problem: Problem, arch: "Arch", w: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """Rows [gate | up] of Linear1 in the order of an architecture's kernel, or back."""
    if arch.has_tensor_memory:
        return interleave_gate_up(w, inverse=inverse)
    return order_rows_sm90(w, inverse, problem.formats.hidden.element)


def inverse_transform_weights(problem: Problem, arch: "Arch", weights: TransformedWeights) -> ExpertWeights:
    """Inverse of `transform_weights`.  Raises `ProblemError` naming the field when the result does not fit `problem`."""
    experts, rows = problem.experts_per_rank, partial(order_fc1, problem, arch, inverse=True)
    if not arch.has_tensor_memory and problem.formats.weights.element == E2M1:
        plain = ExpertWeights(*unpack_tiles(weights.fc1, rows_sm90(problem)), *unpack_tiles(weights.fc2))
    elif not arch.has_tensor_memory:
        plain = ExpertWeights(rows(rows_of_tiles(weights.fc1)), weights.fc1_sf, rows_of_tiles(weights.fc2), weights.fc2_sf)
    else:
        fc1_sf, fc2_sf = weights.fc1_sf, weights.fc2_sf
        if problem.formats.scaled:
            fc1_sf, fc2_sf = rows(inverse_utccp_scale_order(fc1_sf, experts)), inverse_utccp_scale_order(fc2_sf, experts)
            fc1_sf, fc2_sf = (one.view(TORCH_DTYPES[problem.formats.weights.scale]) for one in (fc1_sf, fc2_sf))
        plain = ExpertWeights(rows(rows_of_tiles(weights.fc1)), fc1_sf, rows_of_tiles(weights.fc2), fc2_sf, factors=weights.factors)
    if weights.fc1_bias is not None:
        plain = replace(plain, fc1_bias=rows(weights.fc1_bias.unsqueeze(-1)).squeeze(-1), fc2_bias=weights.fc2_bias)
    plain = plain.resized(problem, weight_shapes(problem))
    plain.validate(problem)
    return plain


def unscaled_weights(fc1: torch.Tensor, fc2: torch.Tensor) -> ExpertWeights:
    """Weights of one rank's El experts for bf16xbf16, as checkpoints have them: bf16 [El, 2I, H], rows [gate | up], and [El, H, I]."""
    return ExpertWeights(fc1, no_scales(fc1), fc2, no_scales(fc2))


def single_expert(problem: Problem) -> Problem:
    """A layer of one expert with the shape and formats of `problem`."""
    return replace(problem, num_experts=1, topk=1, num_ranks=1)


def transform_expert(problem: Problem, arch: "Arch", expert: ExpertWeights) -> TransformedWeights:
    """One expert, El = 1, in kernel order.  Raises `ProblemError` that names the field when it does not fit `problem`."""
    return transform_weights(single_expert(problem), arch, expert)


def new_weights(problem: Problem, arch: "Arch", device: torch.device | str) -> TransformedWeights:
    """Memory for a rank's weights in kernel order, zero, on a device."""
    zeros = {n: torch.zeros(shape, dtype=dtype, device="cpu") for n, (dtype, shape) in checkpoint_layout(single_expert(problem)).items()}
    one, count = transform_expert(problem, arch, ExpertWeights(**zeros)), problem.experts_per_rank
    return one.map(lambda tensor: torch.zeros((count * len(tensor), *tensor.shape[1:]), dtype=tensor.dtype, device=device))


def place_expert(weights: TransformedWeights, index: int, count: int, expert: TransformedWeights) -> None:
    """Copies one expert in kernel order over the one at `index` of `count`."""
    for name, source in vars(expert).items():
        if source is None:
            continue
        target = getattr(weights, name)
        rows = target.shape[0] // count
        target[index * rows : (index + 1) * rows].copy_(source)
