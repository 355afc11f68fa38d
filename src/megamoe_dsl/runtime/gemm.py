"""GEMMs on torch tensors, of BF16 or with block scales, as operators that torch.compile takes as one node.

    d = gemm(a, a_sf, b, b_sf)                                                   [M, N] of [M, K] and [N, K]
    d = gemm(a, None, b, None)                                                   of bfloat16
    d = grouped_gemm(a, a_sf, b, b_sf, ends, kind="packed")                      rows sorted by group, `ends` of each group's rows

A call launches on torch's current stream and does not synchronize; with `out` and scales of A from `scales_by_column` it does not allocate.
The first call of a shape compiles its kernel or loads it from the cache, so make it before a graph is captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self, cast

import torch

from ..blocks.gemm.problem import DENSE, GEMM_RECIPES, KINDS, SCALE_BLOCK, GemmProblem
from ..hardware.packed_tile import TILE_BYTES
from ..problem import ProblemError
from ..quant.weights import TORCH_DTYPES
from ..recipe import RECIPES
from .buffers import check_dims
from .call_plan import CallPlans
from .custom_op import asks_for_gradients, define, is_plain_call, takes_tensors
from .device_gemm import check_current, gemm_kernel
from .gemm_scales import SCALE_DTYPES, given_scales
from .gemm_tensors import OUTPUTS, GemmTensors


class GemmPlan:
    """The kernel for tensors of these dtypes, shapes, contiguity and device.  Raises `ProblemError`."""

    def __init__(self, problem: GemmProblem, tensors: GemmTensors, batch_invariant: bool = False) -> None:
        self._problem, self._device, self._index = problem, tensors.a.device, tensors.a.get_device()
        self._shape, self._dtype = tensors.d.shape, tensors.d.dtype
        self._unscaled = None if problem.formats.scaled else (tensors.a_sf, tensors.b_sf)
        tensors.check(problem)
        check_current(self._device)
        self._kernel = gemm_kernel(problem, self._device, tensors.rows, batch_invariant) if tensors.rows else None

    def __call__(self, out: torch.Tensor | None, *operands: torch.Tensor | None) -> torch.Tensor:
        """`out`, or a new D.  Raises `ProblemError` for the wrong device or alignment."""
        if self._index >= 0 and self._index != torch._C._cuda_getDevice():
            check_current(self._device)
        d = torch.empty(self._shape, dtype=self._dtype, device=self._device) if out is None else out
        if self._kernel is not None:
            a, a_sf, b, b_sf, groups, factors = cast(Any, operands)
            scales = self._unscaled or (a_sf, b_sf)
            tensors = GemmTensors(a, scales[0], b, scales[1], d, groups, factors)
            tensors.check_addresses(self._problem)
            self._kernel(tensors)
        return d


@takes_tensors("a", "b", optional=("a_sf", "b_sf", "out", "factors"))
def gemm(
    a: torch.Tensor,
    a_sf: torch.Tensor | None,
    b: torch.Tensor,
    b_sf: torch.Tensor | None,
    out: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    accumulate: bool = False,
    factors: torch.Tensor | None = None,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """(a * a_sf) @ (b * b_sf)^T.

    On SM90, promoted to FP32 every 128 of K:

    a          float8_e4m3fn [M, K], K a multiple of 128
    a_sf       float32 [M, K / 128]: per row and 128 of K; copied unless strided as `scales_by_column` leaves them
    b          float8_e4m3fn [N, K], N a multiple of 16; or E2M1, made by `gemm_weights` from uint8 [N, K / 2]
    b_sf       float32 [ceil(N / 128), K / 128]: per 128 x 128; of E2M1 made by `gemm_weights` from UE8M0 [N, K / 32]

    On SM100, scaled by the tensor core:

    a          float8_e4m3fn [M, K], or E2M1 uint8 [M, K / 2], two in a byte
    a_sf, b_sf UE8M0 uint8 or float8_e8m0fnu [M, K / 32], [N, K / 32]; or `scale_words` of them, which are not copied
    b          E2M1 uint8 [N, K / 2]; `gemm_weights` leaves it as it is.  float8_e4m3fn [N, K] beside such an a
    factors    of NVFP4 alone, float32 [1]: the product of both matrices' factors, which scales D; a_sf and b_sf are then float8_e4m3fn
               [M, K / 16], [N, K / 16]; or `scale_words` of them

    On both:

    a, b       bfloat16 [M, K] and [N, K], K a multiple of 64; a_sf and b_sf are None
    out        where the result goes, [M, N]; a new tensor by default
    out_dtype  bfloat16 or float32, without `out`
    accumulate add to `out`, float32
    batch_invariant  rows of the result do not depend on M (docs/explanation/batch_invariance.md): SM90 then uses no split-K

    Raises `ProblemError`, which names the tensor and what is wrong with it, before any launch.
    """
    return _call((a, a_sf, b, b_sf, None, factors), DENSE, out, out_dtype, accumulate, batch_invariant)


@takes_tensors("a", "b", "groups", optional=("a_sf", "b_sf", "out", "factors"))
def grouped_gemm(
    a: torch.Tensor,
    a_sf: torch.Tensor | None,
    b: torch.Tensor,
    b_sf: torch.Tensor | None,
    groups: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    kind: str = "packed",
    out_dtype: torch.dtype = torch.bfloat16,
    accumulate: bool = False,
    factors: torch.Tensor | None = None,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """As `gemm`, with a matrix b for each group of rows: b [G, N, K], b_sf [G, ceil(N / 128), K / 128]; of E2M1 `gemm_weights` of
    [G, N, K / 2] and [G, N, K / 32].

    kind    groups, int32
    packed      [G]: where each group's rows end
    aligned     [G]: the same, but each group's rows begin at the next multiple of 128 (DeepGEMM's psum layout)
    contiguous  [M / 128]: the group of each block of 128 rows, -1 to skip the block
    masked      [G]: rows of each group that count; a, a_sf and out have shape [G, capacity, ...]

    Rows of no group are not written.  The device reads `groups`, and clips rows outside of a.  `factors` are float32 [G].  Raises
    `ProblemError` as `gemm` does.
    """
    if kind not in KINDS or kind == DENSE:
        raise ProblemError("kind", kind, "one of " + ", ".join(one for one in KINDS if one != DENSE))
    return _call((a, a_sf, b, b_sf, groups, factors), kind, out, out_dtype, accumulate, batch_invariant)


class Operands(NamedTuple):
    """Both matrices, with scales or `no_scales`."""

    a: torch.Tensor
    a_sf: torch.Tensor
    b: torch.Tensor
    b_sf: torch.Tensor
    groups: torch.Tensor | None = None
    factors: torch.Tensor | None = None

    @classmethod
    def given(cls, a: Any, a_sf: Any, b: Any, b_sf: Any, *others: torch.Tensor | None) -> Self:
        """A caller's operands, with `no_scales` in place of None beside BF16.  Raises `ProblemError` for other values without scales."""
        return cls(a, given_scales("a_sf", a, a_sf), b, given_scales("b_sf", b, b_sf), *others)

    @property
    def recipe(self) -> str:
        """Their number formats: with factors NVFP4, else the first recipe that fits the dtypes of B, then A, then A's scales, which are
        FP32 on SM90.  Raises `ProblemError` for NVFP4 scales without factors."""
        a, a_sf, b, _, _, factors = self
        if a_sf.dtype == torch.float8_e4m3fn and factors is None:
            raise ProblemError("factors", None, "given beside UE4M3 scales")
        known = [one for one in GEMM_RECIPES if RECIPES[one].weights.factor == (factors is not None)]
        fits = [one for one in known if TORCH_DTYPES[RECIPES[one].weights.element] == b.dtype]
        both = [one for one in fits if TORCH_DTYPES[RECIPES[one].activations.element] == a.dtype]
        promoted = a_sf.dtype.is_floating_point and a_sf.dtype not in SCALE_DTYPES
        scaled = [one for one in both if RECIPES[one].promoted == promoted]
        return next(iter((*scaled, *both, *fits, *known)))

    def matrix(self, kind: str) -> tuple[int, int]:
        """N and K of one B.  Raises `ProblemError` for a wrong number of dimensions."""
        lead, formats, b, b_sf = 0 if kind == DENSE else 1, RECIPES[self.recipe], self.b, self.b_sf
        groups = "num_groups, " * lead
        if formats.decodes:
            made = "as gemm_weights makes it for sm_90a"
            check_dims("b", b, lead + 3, f"[{groups}n / 256, k / 128, {TILE_BYTES}], {made}")
            check_dims("b_sf", b_sf, lead + 2, f"[{groups}n, 0], {made}")
            return b_sf.shape[-2], SCALE_BLOCK * b.shape[-2]
        check_dims("b", b, lead + 2, f"[{groups}n, k]")
        return b.shape[-2], b.shape[-1] * 8 * b.element_size() // formats.weights.element_bits

    def new_result(self, kind: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(*self.a.shape[:-1], self.matrix(kind)[0], dtype=dtype, device=self.a.device)


def _call(
    operands: tuple[Any, ...], kind: str, out: torch.Tensor | None, out_dtype: torch.dtype, accumulate: bool, batch_invariant: bool
) -> torch.Tensor:
    a, a_sf, b, b_sf, _, factors = operands
    if out is None and accumulate:
        raise ProblemError("accumulate", accumulate, "False without out")
    if not isinstance(batch_invariant, bool):
        raise ProblemError("batch_invariant", batch_invariant, "True or False")
    if is_plain_call(a) and not asks_for_gradients((out, a_sf, b, b_sf, factors)):
        return launch(out, operands, kind, out_dtype, accumulate, batch_invariant)
    if out is None:
        return cast(torch.Tensor, gemm_op(*Operands.given(*operands), kind, out_dtype, batch_invariant))
    gemm_out_op(out, *Operands.given(*operands), kind, accumulate, batch_invariant)
    return out


def launch(
    out: torch.Tensor | None, operands: tuple[Any, ...], kind: str, out_dtype: torch.dtype, accumulate: bool, batch_invariant: bool = False
) -> torch.Tensor:
    """A GEMM, as an operator or without one; `out_dtype` counts where there is no `out`."""
    tensors = (out, *operands)
    return _PLANS.of(tensors, (kind, out_dtype, accumulate, batch_invariant))(*tensors)


def _plan(tensors: Sequence[torch.Tensor | None], others: tuple[Any, ...]) -> GemmPlan:
    out, operands = tensors[0], Operands.given(*tensors[1:])
    kind, out_dtype, accumulate, batch_invariant = others
    dtype = out_dtype if out is None else out.dtype
    if dtype not in OUTPUTS:
        raise ProblemError("out.dtype", dtype, " or ".join(map(str, OUTPUTS)))
    n, k = operands.matrix(kind)
    problem = GemmProblem(n, k, kind, 1 if kind == DENSE else operands.b.shape[0], OUTPUTS[dtype], accumulate, operands.recipe)
    d = operands.new_result(kind, dtype) if out is None else out
    return GemmPlan(problem, GemmTensors(*operands[:4], d, *operands[4:]), batch_invariant)


_PLANS = CallPlans(_plan)


def _gemm_out(out: torch.Tensor, *given: Any) -> None:
    launch(out, given[:6], given[6], out.dtype, *given[7:])


_OPERANDS = "Tensor a, Tensor a_sf, Tensor b, Tensor b_sf, Tensor? groups, Tensor? factors, str kind"
gemm_op = define(
    "gemm",
    f"({_OPERANDS}, ScalarType out_dtype, bool batch_invariant) -> Tensor",
    lambda *given: launch(None, given[:6], given[6], given[7], False, given[8]),
    lambda *given: Operands(*given[:6]).new_result(*given[6:8]),
)
"""A new D; rows of no group are not written."""
gemm_out_op = define("gemm_out", f"(Tensor(a!) out, {_OPERANDS}, bool accumulate, bool batch_invariant) -> ()", _gemm_out, lambda *_: None)
"""Writes D into `out`; rows of no group are left alone."""


__all__ = ["gemm", "grouped_gemm"]
