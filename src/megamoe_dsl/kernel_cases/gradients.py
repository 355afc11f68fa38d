"""Data of the GEMMs of a backward pass, with their references: sums over rows of groups, and gradients of gate and up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from ..arch import SM90, Arch
from ..blocks.gemm.problem import ALIGNED, DOT_COLUMNS, ROW_BLOCK, SCALE_BLOCK, GatherGemmProblem, VarlenKProblem
from ..quant import no_scales, quantize
from ..recipe import F32, Format
from ..reference import expert_gradients as reference
from ..reference.bounds import scaled_sums
from ..reference.promoted import Accumulate
from ..reference.router import RouterMetadata, router_metadata
from ..reference.stages import scaled_matmul
from ..runtime.cpu_experts import gate_then_up, rows_of_w1
from ..runtime.gemm_scales import scale_words
from ..runtime.gemm_tensors import OUTPUT_DTYPES, GemmTensors
from ..runtime.k_grouped_gemm import sides_of_groups
from .gather import NAN_BYTE, ROWS_PER_TOKEN, rows_of
from .gemm import UNTOUCHED, Compared, exact_scales

DOT_ERROR = 1e-6
"""Of the largest part of a weight's gradient: FP32 sums in another order than the reference's."""


def drawn(generator: torch.Generator, exact: bool, *shape: int) -> torch.Tensor:
    """bfloat16: small integers, whose sums are exact, or normal numbers."""
    if exact:
        return torch.randint(-3, 4, shape, generator=generator).bfloat16()
    return torch.randn(shape, generator=generator).bfloat16()


@dataclass(frozen=True)
class VarlenKCase:
    """Operands of a GEMM that sums over the rows of each group (varlen-K): `counts[g]` rows of group g; rows between groups are NaN.
    The tensor core of `arch` forms the sums."""

    problem: VarlenKProblem
    tensors: GemmTensors
    counts: tuple[int, ...]
    arch: Arch = SM90

    def compared(self, *, exact: bool, k_blocks: int = 0) -> dict[str, Compared]:
        """D, with its lowest and highest allowed values: on Hopper equal, on Blackwell as far apart as the order of additions explains."""
        if self.arch.has_tensor_memory:
            sums, errors = zip(*(scaled_sums(*one) for one in self.sides()), strict=True)
            total, error = torch.stack(sums), torch.stack(errors) * (not exact)
            low, high = (self.stored((total + end).float()) for end in (-error, error))
            return {"D": (self.tensors.d, low, high)}
        order: Accumulate = torch.float64 if exact else "hopper"
        expected = self.stored(torch.stack([scaled_matmul(a, a_sf, b, b_sf, order) for a, a_sf, b, b_sf in self.sides()]))
        return {"D": (self.tensors.d, expected, expected)}

    def stored(self, sums: torch.Tensor) -> torch.Tensor:
        d = self.tensors.d
        return (sums + d if self.problem.accumulate else sums).to(d.dtype)

    def sides(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """Left, its scales, right and its scales of each group, transposed: operands of `scaled_matmul`."""
        t = self.tensors
        if not self.problem.gathers:
            yield from sides_of_groups((t.a, t.a_sf), (t.b, t.b_sf), list(accumulate(self.counts)))
            return
        assert t.sources is not None and t.groups is not None
        for end, count in zip(t.groups.tolist(), self.counts, strict=True):
            pair = t.a[t.sources[end - count : end].long()], t.b[end - count : end]
            left, right = (one.T.contiguous() for one in (pair[::-1] if self.problem.transposes else pair))
            yield left, no_scales(left), right, no_scales(right)


def transposed_side(generator: torch.Generator, exact: bool, columns: int, rows: int, form: Format) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [columns, rows] and scales [rows / 128, columns], or words of those for 32; of small integers the scales are powers of two.
    Scales of the last 128 rows are NaN."""
    values = drawn(generator, exact, columns, rows).float()
    codes, sf = quantize(values, form)
    if exact:
        codes, sf = values.to(torch.float8_e4m3fn), exact_scales(form, tuple(sf.shape), generator)
    sf[:, -SCALE_BLOCK // form.channels :] = torch.nan if form.scale == F32 else NAN_BYTE
    return codes, sf.T.contiguous() if form.scale == F32 else scale_words(sf)


def varlen_k_case(problem: VarlenKProblem, counts: Sequence[int], seed: int = 0, *, exact: bool = True, arch: Arch = SM90) -> VarlenKCase:
    """Operands drawn for `counts` rows of each group, and rows that no group has: 3 that are gathered, or 128 with scales of NaN."""
    generator, per_group = torch.Generator().manual_seed(seed), torch.tensor(counts)
    padding = -per_group % (ROW_BLOCK if problem.kind == ALIGNED else 1)
    ends = ((per_group + padding).cumsum(0) - padding).int()
    rows = int(ends[-1])
    d = torch.full((problem.num_groups, problem.n, problem.k), UNTOUCHED, dtype=OUTPUT_DTYPES[problem.output])
    if not problem.gathers:
        form = problem.formats.activations
        sides = [transposed_side(generator, exact, columns, rows + SCALE_BLOCK, form) for columns in (problem.n, problem.k)]
        return VarlenKCase(problem, GemmTensors(*sides[0], *sides[1], d, ends), tuple(counts), arch)
    tokens = rows // ROWS_PER_TOKEN + 1
    sources = torch.randint(0, tokens, (rows + 3,), generator=generator, dtype=torch.int32)
    packed = drawn(generator, exact, rows + 3, problem.tile_columns)
    for end, following in zip(ends.tolist(), [*(ends - per_group)[1:].tolist(), len(packed)], strict=True):
        packed[end:following] = torch.nan
    gathered = drawn(generator, exact, tokens, problem.tile_rows)
    tensors = GemmTensors(gathered, no_scales(gathered), packed, no_scales(packed), d, ends, sources=sources)
    return VarlenKCase(problem, tensors, tuple(counts), arch)


@dataclass(frozen=True)
class GradientCase:
    """Operands of gradients of gate and up; every token has one row, of an expert and with a weight that are drawn."""

    problem: GatherGemmProblem
    tensors: GemmTensors
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor

    def compared(self, *, exact: bool, k_blocks: int = 0) -> dict[str, Compared]:
        """Outputs with their lowest and highest allowed values.  Weighted rows are known to the bit; gradients of gate and up may be the
        next BF16 number, as the sigmoid is approximate; parts of the weights' gradients depend on the order of additions."""
        t = self.tensors
        assert t.weighted is not None and t.dots is not None
        raw = self.raw()
        found, dots = self.reference(raw), []
        for first in range(0, self.problem.n, DOT_COLUMNS):
            part = torch.zeros_like(raw)
            part[:, first : first + DOT_COLUMNS] = raw[:, first : first + DOT_COLUMNS]
            dots.append(self.reference(part).topk_weights.flatten()[self.metadata.sources.long()])
        of_weights = torch.stack(dots)
        room = DOT_ERROR * of_weights.abs().max() if of_weights.numel() else 0.0
        next_to = found.rows.float().abs() * 2.0**-7
        return {
            "dH": (t.d, (found.rows - next_to).bfloat16(), (found.rows + next_to).bfloat16()),
            "weighted": (t.weighted, found.weighted, found.weighted),
            "dots": (t.dots, of_weights - room, of_weights + room),
        }

    @property
    def metadata(self) -> RouterMetadata:
        return router_metadata(self.topk_idx, self.problem.num_groups)

    def raw(self) -> torch.Tensor:
        """Sums as Hopper's tensor core forms them; of MXFP8 exact ones."""
        t, sources = self.tensors, self.metadata.sources.long()
        b = t.b.mT if self.problem.transposed_b else t.b
        return reference.expert_sums((rows_of(t.a, sources), t.a_sf[sources]), (b, t.b_sf), self.metadata.counts)

    def reference(self, raw: torch.Tensor) -> reference.RowGradients:
        p, order = self.problem, self.problem.gradient
        assert self.tensors.gate_up is not None
        columns = (lambda rows: gate_then_up(rows, order)), (lambda rows: rows_of_w1(rows, order))
        return reference.row_gradients(p, raw, self.metadata, self.topk_weights, self.tensors.gate_up, columns)


def gradient_case(problem: GatherGemmProblem, counts: Sequence[int], seed: int = 0, *, exact: bool = True) -> GradientCase:
    """Drawn for these rows of each expert."""
    p, generator, rows = problem, torch.Generator().manual_seed(seed), sum(counts)
    experts = torch.arange(p.num_groups).repeat_interleave(torch.tensor(counts))[torch.randperm(rows, generator=generator)]
    topk_idx, weights = experts[:, None], torch.rand(rows, 1, generator=generator)
    metadata = router_metadata(topk_idx, p.num_groups)
    dy, (b, b_sf) = drawn(generator, exact, rows, p.k), quantize(drawn(generator, exact, p.num_groups, p.n, p.k) / 16, p.formats.weights)
    b = b.mT.contiguous() if p.transposed_b else b
    gate_up = 2 * torch.randn(rows, 2 * p.n, generator=generator)
    d, weighted = (torch.full((rows, columns), UNTOUCHED).bfloat16() for columns in (p.d_columns, p.n))
    dots = torch.full((-(-p.n // DOT_COLUMNS), rows), UNTOUCHED)
    of_rows = weights.flatten()[metadata.sources.long()]
    gradient: Any = {"gate_up": gate_up.bfloat16(), "row_weights": of_rows, "weighted": weighted, "dots": dots}
    tensors = GemmTensors(*quantize(dy, p.formats.activations), b, b_sf, d, metadata.ends, sources=metadata.sources, **gradient)
    return GradientCase(p, tensors, topk_idx, weights)
