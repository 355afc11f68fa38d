"""Tensors of a GEMM whose K are the rows of groups: what they must be, and the arguments of a launch that they make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from ..blocks.gemm.problem import SCALE_BLOCK, GemmProblem, VarlenKProblem
from ..hardware.operand_tile import CHANNELS_PER_SCALE
from ..problem import ProblemError
from ..quant import inverse_utccp_scale_order
from .buffers import check_tensor
from .gemm_scales import TMA_ALIGNMENT, rows_of_words
from .gemm_tensors import OUTPUT_DTYPES, LaunchTensors


def summed(problem: GemmProblem, *, gathers: bool) -> VarlenKProblem:
    """The problem.  Raises `ProblemError` unless it sums over rows that are gathered, or over none."""
    if not isinstance(problem, VarlenKProblem):
        raise ProblemError("problem", type(problem).__name__, "a VarlenKProblem")
    if problem.gathers != gathers:
        raise ProblemError("problem.recipe", problem.recipe, "one whose rows are gathered" if gathers else "one whose operands have scales")
    return problem


def check_sums(problem: VarlenKProblem, ends: torch.Tensor, d: torch.Tensor) -> None:
    """Raises `ProblemError` for ends of groups, or sums, that do not fit."""
    check_tensor("ends", ends, torch.int32, (problem.num_groups,), d.device)
    check_tensor("out", d, OUTPUT_DTYPES[problem.output], (problem.num_groups, problem.n, problem.k), d.device, TMA_ALIGNMENT)


@dataclass(frozen=True)
class VarlenKTensors(LaunchTensors):
    """Those in bf16xbf16.

    gathered  bfloat16 [tokens, columns of the gathered side]
    sorted    bfloat16 [m or more, columns of the other side], rows sorted by group; those behind the last group's may hold anything
    ends      int32 [num_groups], where each group's rows end
    sources   int32 [m], the row of `gathered` of each row
    d         bfloat16 or float32 [num_groups, n, k]
    """

    gathered: torch.Tensor
    sorted: torch.Tensor
    ends: torch.Tensor
    sources: torch.Tensor
    d: torch.Tensor

    def check(self, problem: GemmProblem) -> None:
        """Raises `ProblemError` as of any launch, and where sources have no rows."""
        p, device = summed(problem, gathers=True), self.d.device
        check_tensor("gathered", self.gathered, torch.bfloat16, (len(self.gathered), p.tile_rows), device, TMA_ALIGNMENT)
        check_tensor("sorted", self.sorted, torch.bfloat16, (len(self.sorted), p.tile_columns), device, TMA_ALIGNMENT)
        check_tensor("sources", self.sources, torch.int32, (self.sources.numel(),), device)
        check_sums(p, self.ends, self.d)
        p.check_rows(self.rows, "sources.shape[0]")
        if self.rows > len(self.sorted):
            raise ProblemError("sources.shape[0]", self.rows, f"at most {len(self.sorted)}, the rows of sorted")
        if self.rows and not len(self.gathered):
            raise ProblemError("gathered.shape[0]", 0, "1 or more where rows are gathered from it")

    @property
    def rows(self) -> int:
        return self.sources.numel()

    def operands(self) -> dict[str, torch.Tensor]:
        return {"a": self.gathered, "b": self.sorted, "groups": self.ends, "sources": self.sources}

    def numbers(self, operands: dict[str, torch.Tensor]) -> dict[str, int]:
        absent = dict.fromkeys(("a_sf", "b_sf", "d_sf", "a_sf_ld", "d_sf_ld"), 0)
        return {**absent, "a_rows": len(self.gathered), "d_rows": self.d.shape[0] * self.d.shape[1]}


Side = tuple[torch.Tensor, torch.Tensor]
"""Codes of a side that lies transposed, and their scales."""


def micro_scaled_groups(left: Side, right: Side, ends: Sequence[int]) -> Iterator[tuple[Side, Side]]:
    """Left and right of each group with their UE8M0 scales; the sides of all have `scale_words`."""
    sides = [(codes, inverse_utccp_scale_order(words)[: len(codes)]) for codes, words in (left, right)]
    for first, end in pairwise([0, *ends]):
        scaled = slice(first // CHANNELS_PER_SCALE, end // CHANNELS_PER_SCALE)
        one, other = ((codes[:, first:end], sf[:, scaled]) for codes, sf in sides)
        yield one, other


@dataclass(frozen=True)
class TransposedTensors(LaunchTensors):
    """Those in fp8xfp8 and mxfp8xmxfp8.

    left, right        float8_e4m3fn [n, m] and [k, m], m a multiple of 128, columns sorted by group
    left_sf, right_sf  float32 [m / 128, n] and [m / 128, k], a scale for each row of a side and 128 of its columns; of MXFP8
                       `scale_words` of those for 32, int32, n and k rounded up to 128
    ends               int32 [num_groups], where each group's columns end, multiples of 128
    d                  bfloat16 or float32 [num_groups, n, k]
    """

    left: torch.Tensor
    left_sf: torch.Tensor
    right: torch.Tensor
    right_sf: torch.Tensor
    ends: torch.Tensor
    d: torch.Tensor

    def check(self, problem: GemmProblem) -> None:
        p, device, rows = summed(problem, gathers=False), self.d.device, self.rows
        if p.check_rows(rows, "left.shape[1]") % SCALE_BLOCK:
            raise ProblemError("left.shape[1]", rows, f"a multiple of {SCALE_BLOCK}")
        for name, columns in (("left", p.n), ("right", p.k)):
            check_tensor(name, getattr(self, name), torch.float8_e4m3fn, (columns, rows), device, TMA_ALIGNMENT)
            dtype, width = (torch.float32, columns) if p.formats.promoted else (torch.int32, rows_of_words(columns))
            check_tensor(f"{name}_sf", getattr(self, f"{name}_sf"), dtype, (rows // SCALE_BLOCK, width), device, TMA_ALIGNMENT)
        check_sums(p, self.ends, self.d)

    @property
    def rows(self) -> int:
        return self.left.shape[-1]

    def operands(self) -> dict[str, torch.Tensor]:
        return {"a": self.left, "a_sf": self.left_sf, "b": self.right, "b_sf": self.right_sf, "groups": self.ends}

    def numbers(self, operands: dict[str, torch.Tensor]) -> dict[str, int]:
        absent = dict.fromkeys(("d_sf", "sources", "a_sf_ld", "d_sf_ld"), 0)
        return {**absent, "a_rows": self.rows, "d_rows": self.d.shape[0] * self.d.shape[1]}
