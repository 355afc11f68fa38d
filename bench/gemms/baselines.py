"""Other projects' GEMMs on the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from baselines.site import import_from
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.gemm.point import GemmPoint
from megamoe_dsl.bench.gemm.run import GemmRun, configs_of
from megamoe_dsl.bench.gemm.session import (
    TOLERANCE,
    Launches,
    PointInputs,
    checked,
    copies_of,
    in_rotation,
    loaded,
    run_point,
    table,
)
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.results import Recorded
from megamoe_dsl.blocks.gemm.problem import CONTIGUOUS, DENSE, GEMM_RECIPES, MASKED, PACKED, ROW_BLOCK
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.target import Target

BASELINE = "deep_gemm"


def find_package(site: Path | None) -> None:
    """Raises `ProblemError` for a folder without the baseline's."""
    if site is not None and not (site / BASELINE).is_dir():
        raise ProblemError("baseline", str(site), f"a folder with unpacked wheels, {BASELINE} among them")


@dataclass(frozen=True)
class Others:
    """Other projects' kernels, by name: launches, errors of results that were checked, and why a kernel refuses the point."""

    launches: Launches = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunBeside(GemmRun):
    """A run in which other projects' kernels take turns with every point's; DeepGEMM's is in the folder `site`, if there is one."""

    site: Path | None = None

    def recorded(self) -> Recorded:
        return Recorded(self.out, "gemm", self.site)

    def measure(self, point: GemmPoint, store: ArtifactStore, host: Host) -> dict[str, Any]:
        beside, found = Beside(store, host.target, self.site), Others()

        def launches(inputs: PointInputs) -> Launches:
            nonlocal found
            found = beside.others(point, inputs)
            return found.launches

        record = run_point(point, configs_of(store, point, host.target, self.variants), store, others=launches)
        for one in record["kernels"]:
            if one["kernel"] in found.errors:
                error = found.errors[one["kernel"]]
                one["check"] = {"error": error, "passed": error <= TOLERANCE}
        return {**record, "refused": found.refused}

    def row(self, record: dict[str, Any]) -> str:
        return beside_table(record)


def beside_table(record: dict[str, Any]) -> str:
    """A record as text; ratios are those of the fastest other kernel's time to a kernel's."""
    others, lines = [one for one in record["kernels"] if one["config"] is None], [table(record)]
    if others:
        us, graph_us = (min(one[kind]["median"] for one in others) for kind in ("us", "graph_us"))
        for one in record["kernels"]:
            ratios = us / one["us"]["median"], graph_us / one["graph_us"]["median"]
            lines.append("  the fastest other kernel: {:.3f} {:.3f} times {}".format(*ratios, one["kernel"]))
    return "\n".join([*lines, *(f"  {name} refuses: {text}" for name, text in record["refused"].items())])


@dataclass(frozen=True)
class Beside:
    """What takes turns with this project's kernels: DeepGEMM's and torch's; beside weights that are decoded this project's for E4M3 ones,
    and DeepGEMM's.

    store, target  of kernels for E4M3 weights
    site           folder of DeepGEMM's package, or None
    """

    store: ArtifactStore
    target: Target
    site: Path | None

    def others(self, point: GemmPoint, inputs: PointInputs) -> Others:
        """Of a point and its operands."""
        if point.problem.decodes:
            return self.usual(point.having(GEMM_RECIPES[0]))
        other, errors = torch.full_like(inputs.tensors.d, float("nan")), dict[str, float]()
        found = deep_gemm(point, inputs, other, self.site)
        for name, run in found.items():
            run()
            torch.cuda.synchronize()
            if name == BASELINE:
                errors[name] = inputs.error(other)
        theirs, refused = (torch_scaled if point.problem.formats.scaled else torch_unscaled)(point, inputs)
        return Others(found | theirs, errors, refused)

    def usual(self, point: GemmPoint) -> Others:
        """The same point with E4M3 weights, on numbers of their own."""
        inputs, recipe = PointInputs.draw(point), point.problem.recipe
        configs = configs_of(self.store, point, self.target, False)
        checks = checked(loaded(configs, self.store, inputs.tensors), inputs)
        found = []
        for one in inputs.copies(copies_of(inputs.tensors)):
            ours = {f"{recipe} {name}": launch for name, launch in loaded(configs, self.store, one.tensors).items()}
            found.append({**ours, **deep_gemm(point, one, torch.empty_like(one.tensors.d), self.site)})
        return Others(in_rotation(found), {f"{recipe} {name}": error for name, error in checks.items()})


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
    from megamoe_dsl.runtime.gemm_scales import scales_by_column

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
