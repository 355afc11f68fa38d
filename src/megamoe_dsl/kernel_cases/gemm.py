"""Data of a GEMM with its reference: exact, where every sum is, or normal numbers quantized."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ..arch import SM90, Arch
from ..blocks.gemm.problem import ALIGNED, CONTIGUOUS, DENSE, MASKED, ROW_BLOCK, SCALE_BLOCK, GemmProblem
from ..config_error import as_integer
from ..hardware.packed_tile import TILE_ROWS
from ..problem import ProblemError
from ..quant import MICRO_SCALING, no_scales, quantize
from ..quant import SCALE_BLOCK as SCALE_CHANNELS
from ..quant.weights import TORCH_DTYPES
from ..recipe import F32, Format
from ..reference.bounds import scaled_sums
from ..reference.promoted import Accumulate
from ..reference.stages import scaled_matmul
from ..runtime.gemm_scales import capacity_step, gemm_weights
from ..runtime.gemm_tensors import OUTPUT_DTYPES, GemmTensors

UNTOUCHED = 7.0
"""What D holds before a launch."""


Compared = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""A result of a launch, and its lowest and highest allowed values, which are equal if its bits are known."""


@dataclass(frozen=True)
class GemmCase:
    """Operands, and which rows of A belong to which group: `spans` (group, first row, rows); rows of no group stay untouched.

    weights  matrices B and their scales, of each group, as checkpoints have them
    arch     whose tensor core forms the sums
    """

    problem: GemmProblem
    tensors: GemmTensors
    spans: tuple[tuple[int, int, int], ...]
    weights: tuple[torch.Tensor, torch.Tensor]
    arch: Arch = SM90

    @property
    def sums_known(self) -> bool:
        """Whether sums of any numbers are known to the bit; those of Blackwell are not."""
        return self.problem.formats.sums_known and not self.arch.has_tensor_memory

    def reference(self, accumulate: Accumulate = torch.float64, k_blocks: int = 0) -> torch.Tensor:
        """D, of the result's type and shape, from what D holds now.  `k_blocks` of K are summed at a time, as `scaled_matmul` does it, and
        these sums are added in FP32; 0 sums all of K at once."""
        p, d = self.problem, self.tensors.d.flatten(0, -2).clone()
        for part, factor, operands in self.products():
            found, step = torch.zeros(part.stop - part.start, p.n), (k_blocks or p.k_blocks) * p.k_block
            for first in range(0, p.k, step):
                a, a_sf, b, b_sf = (one[:, first * one.shape[1] // p.k : (first + step) * one.shape[1] // p.k] for one in operands)
                found += scaled_matmul(a.contiguous(), a_sf.contiguous(), b.contiguous(), b_sf.contiguous(), accumulate)
            found *= factor
            d[part] = (found + d[part] if p.accumulate else found).to(d.dtype)
        return d.view(self.tensors.d.shape)

    def products(self) -> Iterator[tuple[slice, torch.Tensor, tuple[torch.Tensor, ...]]]:
        """For each group: its rows of D, its factor, and A, scales of A, B and scales of B.  D is their product times the factor."""
        t = self.tensors
        a, a_sf = t.a.flatten(0, -2), t.a_sf.flatten(0, -2)
        b, b_sf = self.weights
        for group, first, rows in self.spans:
            part, factor = slice(first, first + rows), torch.ones(()) if t.factors is None else t.factors[group]
            yield part, factor, (a[part], a_sf[part].contiguous(), b[group], b_sf[group])

    def ends(self, *, exact: bool, k_blocks: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Lowest and highest allowed D, from the current contents of D; `k_blocks` as of `reference`.

        They are equal for `exact` data, and if the tensor core's sums are known; otherwise as far apart as the order of its additions
        explains (`reference.scaled_sums`).
        """
        if exact or self.sums_known:
            one = self.reference(torch.float64 if exact else "hopper", k_blocks)
            return one, one
        low, high = (self.tensors.d.flatten(0, -2).clone() for _ in range(2))
        for part, factor, operands in self.products():
            total, error = scaled_sums(*operands)
            before = low[part].clone() if self.problem.accumulate else 0.0
            for one, end in ((low, -error), (high, error)):
                one[part] = ((total + end).float() * factor + before).to(low.dtype)
        return low.view(self.tensors.d.shape), high.view(self.tensors.d.shape)

    def compared(self, *, exact: bool, k_blocks: int = 0) -> dict[str, Compared]:
        return {"D": (self.tensors.d, *self.ends(exact=exact, k_blocks=k_blocks))}


def gemm_case(problem: GemmProblem, counts: Sequence[int], seed: int = 0, *, exact: bool = True, arch: Arch = SM90) -> GemmCase:
    """Operands drawn for `counts` rows of each group (one count of a dense problem).  Groups of a masked problem have room for the highest
    count, rounded up to what the kernel takes.

    exact  small integers with powers of two as scales: every sum is exact
    arch   whose tensor core forms the sums

    Raises `ProblemError` for a list of another length or a bad count.
    """
    if len(counts) != problem.num_groups:
        raise ProblemError("len(rows)", len(counts), f"num_groups = {problem.num_groups}")
    for count in counts:
        if (number := as_integer(count)) is None or number < 0:
            raise ProblemError("rows", count, "a number of rows, 0 or more")
    step = capacity_step(problem)
    capacity = -(-max(1, *counts) // step) * step
    rows, spans, groups = place_rows(problem, counts, capacity)
    generator = torch.Generator().manual_seed(seed)
    a, a_sf, b, b_sf = drawing_of(problem, exact)(problem, rows, generator)
    lead, weights = (problem.num_groups, capacity) if problem.kind == MASKED else (rows,), (b, b_sf)
    if problem.decodes:
        b, b_sf = gemm_weights(b, b_sf, SM90)
    if problem.transposed_b:
        b = b.transpose(1, 2)
    if not problem.has_groups:
        b, b_sf = b[0], b_sf[0]
    d = torch.full((*lead, problem.n), UNTOUCHED, dtype=OUTPUT_DTYPES[problem.output])
    tensors = GemmTensors(a.view(*lead, a.shape[-1]), a_sf.view(*lead, a_sf.shape[-1]), b.contiguous(), b_sf, d, groups)
    if problem.formats.weights.factor:
        tensors = replace(tensors, factors=torch.rand(problem.num_groups, generator=generator) + 0.5)
    return GemmCase(problem, tensors, spans, weights, arch)


def drawing_of(problem: GemmProblem, exact: bool) -> Callable[[GemmProblem, int, torch.Generator], tuple[torch.Tensor, ...]]:
    """The function that draws operands in the problem's formats."""
    if not exact:
        return draw_normal
    if not problem.formats.scaled:
        return draw_exact_plain
    return draw_exact_mixed if problem.decodes else draw_exact


def place_rows(
    problem: GemmProblem, counts: Sequence[int], capacity: int
) -> tuple[int, tuple[tuple[int, int, int], ...], torch.Tensor | None]:
    """Number of rows of A, the `spans` of groups, and the kernel's `groups`."""
    if problem.kind == DENSE:
        return counts[0], ((0, 0, counts[0]),), None
    if problem.kind == MASKED:
        spans = tuple((group, group * capacity, count) for group, count in enumerate(counts))
        return capacity * len(counts), spans, torch.tensor(counts, dtype=torch.int32)
    spans_found, index, first = [], [], 0
    for group, count in enumerate(counts):
        taken = -(-count // problem.row_step) * problem.row_step
        spans_found.append((group, first, count if problem.kind == ALIGNED else taken))
        index += [group] * (taken // ROW_BLOCK)
        first += taken
    if problem.kind == CONTIGUOUS:
        # A block more that belongs to none.
        return first + ROW_BLOCK, tuple(spans_found), torch.tensor([*index, -1], dtype=torch.int32)
    ends = [start + taken for _, start, taken in spans_found]
    return first, tuple(spans_found), torch.tensor(ends, dtype=torch.int32)


def operands_of(problem: GemmProblem, rows: int) -> tuple[tuple[Format, tuple[int, ...]], ...]:
    """Formats and shapes of A and of B."""
    formats = problem.formats
    return (formats.activations, (rows, problem.k)), (formats.weights, (problem.num_groups, problem.n, problem.k))


def draw_exact(problem: GemmProblem, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """A, its scales, B, its scales; FP32 represents every product, sum and result exactly."""
    found: list[torch.Tensor] = []
    for form, shape in operands_of(problem, rows):
        values = torch.randint(-3, 4, shape, generator=generator).float()
        blocks = (*shape[:-2], -(-shape[-2] // form.rows), form.scales_of(problem.k))
        found += [MICRO_SCALING[form.element].encode(values), exact_scales(form, blocks, generator)]
    return tuple(found)


def exact_scales(form: Format, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Powers of two, or of NVFP4 eighths from 1/2 on."""
    if form.scale == F32:
        return torch.exp2(torch.randint(-2, 3, shape, generator=generator))
    ends = (0x30, 0x40) if form.factor else (125, 130)
    return torch.randint(*ends, shape, generator=generator, dtype=torch.uint8).view(TORCH_DTYPES[form.scale])


def draw_exact_plain(problem: GemmProblem, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """BF16 without scales: integers, of B over a power of two, whose products and sums FP32 has."""
    a, b = (torch.randint(-31, 32, shape, generator=generator).to(torch.bfloat16) for _, shape in operands_of(problem, rows))
    b = b * 2.0**-10  # sums whose sigmoid is between 0 and 1
    return a, no_scales(a), b, no_scales(b)


def draw_exact_mixed(problem: GemmProblem, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """E4M3 with FP32 scales by E2M1 with UE8M0 ones, which differ by a factor of two within 128 of K: a partial sum of 128 is below 2^14
    halves, as many bits as the tensor core keeps."""
    p = problem
    a = torch.randint(-3, 4, (rows, p.k), generator=generator).float().to(torch.float8_e4m3fn)
    a_sf = torch.exp2(torch.randint(-2, 3, (rows, p.k_blocks), generator=generator))
    shape = (p.num_groups, p.n)
    b, wide, narrow = (
        torch.randint(*ends, (*shape, last), generator=generator, dtype=torch.uint8)
        for ends, last in (((0, 256), p.k // 2), ((126, 128), p.k_blocks), ((0, 2), p.k // SCALE_CHANNELS))
    )
    # Rows of every other packed tile have powers of two of their own, too far apart for shifts.
    own = torch.randint(-8, 9, (*shape, 1), generator=generator, dtype=torch.int8)
    tile = torch.arange(p.n)[None, :, None] // TILE_ROWS + torch.arange(p.num_groups)[:, None, None]
    scales = wide.repeat_interleave(SCALE_BLOCK // SCALE_CHANNELS, dim=2) + narrow
    return a, a_sf, b, (scales.to(torch.int16) + own * (tile % 2)).to(torch.uint8)


def draw_normal(problem: GemmProblem, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """The same of normal numbers, quantized; where B is decoded, every 32 of its K have a magnitude of their own."""
    (a_form, a_shape), (b_form, b_shape) = operands_of(problem, rows)
    a, b = torch.randn(a_shape, generator=generator), torch.randn(b_shape, generator=generator)
    if problem.decodes:
        parts = b.unflatten(-1, (-1, SCALE_CHANNELS))
        b = (parts * torch.exp2(torch.randint(-4, 5, (*parts.shape[:-1], 1), generator=generator))).flatten(-2)
    return *quantize(a, a_form), *quantize(b, b_form)
