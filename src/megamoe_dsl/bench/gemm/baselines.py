"""Other projects' GEMMs on the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...blocks.gemm.problem import CONTIGUOUS, DENSE, MASKED, PACKED, ROW_BLOCK
from ..site import import_from
from .inputs import PointInputs
from .point import GemmPoint

Launches = dict[str, Callable[[], Any]]


def deep_gemm(point: GemmPoint, inputs: PointInputs, d: torch.Tensor, site: Path | None) -> Launches:
    """DeepGEMM's GEMM of the point's kind, if its package is in the folder `site`: `fp8_gemm_nt` and the m-grouped ones.  What it has none
    of is compared with its contiguous one, on rows padded as that asks for."""
    if site is None:
        return {}
    library = import_from("deep_gemm", site)
    t, p = inputs.tensors, point.problem
    if not p.formats.scaled:
        return unscaled_deep_gemm(library, point, inputs, d)
    a, b = (t.a, t.a_sf), (t.b, t.b_sf)
    if p.kind == DENSE:
        return both_ways(library, "deep_gemm", lambda: library.fp8_gemm_nt(a, b, d))
    assert t.groups is not None
    counts = t.groups
    if p.kind == MASKED:
        expected = -(-point.rows // p.num_groups)
        return both_ways(library, "deep_gemm", lambda: library.fp8_m_grouped_gemm_nt_masked(a, b, d, counts, expected))
    if p.kind == CONTIGUOUS:
        index = t.groups.repeat_interleave(ROW_BLOCK)
        return both_ways(library, "deep_gemm", lambda: library.m_grouped_fp8_gemm_nt_contiguous(a, b, d, index))
    return padded_deep_gemm(library, point, inputs)


def both_ways(library: Any, name: str, run: Callable[[], Any]) -> Launches:
    """As it is by default, and with launches that begin before the one before has ended, as this project's do."""

    def early() -> None:
        library.set_pdl(True)
        run()
        library.set_pdl(False)

    return {name: run, f"{name} pdl": early} if hasattr(library, "set_pdl") else {name: run}


def unscaled_deep_gemm(library: Any, point: GemmPoint, inputs: PointInputs, d: torch.Tensor) -> Launches:
    """Its BF16 GEMM of the point's kind; none of packed rows."""
    t, p = inputs.tensors, point.problem
    if p.kind == DENSE:
        return both_ways(library, "deep_gemm", lambda: library.bf16_gemm_nt(t.a, t.b, d))
    assert t.groups is not None
    groups = t.groups
    if p.kind == MASKED:
        expected = -(-point.rows // p.num_groups)
        return both_ways(library, "deep_gemm", lambda: library.m_grouped_bf16_gemm_nt_masked(t.a, t.b, d, groups, expected))
    if p.kind == CONTIGUOUS:
        index = groups.repeat_interleave(ROW_BLOCK)
        return both_ways(library, "deep_gemm", lambda: library.m_grouped_bf16_gemm_nt_contiguous(t.a, t.b, d, index))
    return {}


def torch_unscaled(point: GemmPoint, inputs: PointInputs) -> tuple[Launches, dict[str, str]]:
    """torch's own GEMMs of BF16: `matmul`, `_grouped_mm` of packed rows, `bmm` of all that a masked problem has room for; and by name why
    there is none."""
    t, p = inputs.tensors, point.problem
    b = t.b.transpose(-1, -2)
    if p.kind == CONTIGUOUS:
        return {}, {"torch _grouped_mm": "ends of groups where here is the group of each block of rows; measured as packed"}
    if p.kind == DENSE:
        return {"torch matmul": lambda: torch.matmul(t.a, b)}, {}
    if p.kind == MASKED:
        return {"torch bmm": lambda: torch.bmm(t.a, b)}, {}
    grouped: Any = torch._grouped_mm
    return {"torch _grouped_mm": lambda: grouped(t.a, b, offs=t.groups)}, {}


def padded_deep_gemm(library: Any, point: GemmPoint, inputs: PointInputs) -> Launches:
    """The contiguous GEMM on the rows of a packed point, every group padded to whole blocks; its own D."""
    from ...runtime.gemm_scales import scales_by_column

    t, p = inputs.tensors, point.problem
    blocks = [-(-count // ROW_BLOCK) for count in point.counts]
    rows = ROW_BLOCK * sum(blocks)
    a = torch.zeros(rows, p.k, dtype=torch.uint8, device=t.a.device)
    a_sf = torch.ones(rows, p.k_blocks, device=t.a.device)
    first = start = 0
    for count, taken in zip(point.counts, blocks, strict=True):
        a[start : start + count] = t.a[first : first + count].view(torch.uint8)
        a_sf[start : start + count] = t.a_sf[first : first + count]
        first, start = first + count, start + taken * ROW_BLOCK
    index = torch.repeat_interleave(torch.arange(p.num_groups), torch.tensor(blocks) * ROW_BLOCK).int().to(t.a.device)
    operand = (a.view(torch.float8_e4m3fn), scales_by_column(a_sf))
    d = torch.empty(rows, p.n, dtype=t.d.dtype, device=t.a.device)
    return both_ways(library, "deep_gemm padded", lambda: library.m_grouped_fp8_gemm_nt_contiguous(operand, (t.b, t.b_sf), d, index))


def torch_scaled(point: GemmPoint, inputs: PointInputs) -> tuple[Launches, dict[str, str]]:
    """torch's own GEMMs with scales per 1 x 128 and 128 x 128, and by name what they say where they refuse."""
    from torch.nn import functional

    t, p = inputs.tensors, point.problem
    name = "scaled_grouped_mm" if p.has_groups else "scaled_mm"
    multiply: Any = getattr(functional, name, None)
    recipes: Any = getattr(functional, "ScalingType", None)
    if multiply is None or recipes is None:
        return {}, {f"torch {name}": f"torch {torch.__version__} has none"}
    a, a_sf, b = t.a, t.a_sf, t.b.transpose(-1, -2)
    b_sf = t.b_sf.contiguous().transpose(-1, -2)
    more: dict[str, Any] = {}
    if p.kind == CONTIGUOUS:
        return {}, {f"torch {name}": "ends of groups where here is the group of each block of rows; measured as packed"}
    if p.kind == PACKED:
        more = {"offs": t.groups}

    def run() -> Any:
        return multiply(
            *(a, b, a_sf, recipes.BlockWise1x128, b_sf, recipes.BlockWise128x128),
            **{"output_dtype": torch.bfloat16, "use_fast_accum": False, **more},
        )

    try:
        run()
        torch.cuda.synchronize()
    except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
        return {}, {f"torch {name}": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return {f"torch {name}": run}, {}
