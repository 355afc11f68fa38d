"""Checks and times GEMM kernels of a point on a GPU, in turns; sampled rows of D are compared with float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import torch

from ...arch import SM90
from ...artifact.store import ArtifactStore
from ...blocks.gemm.config import GemmConfig
from ...blocks.gemm.problem import MASKED
from ...kernel_cases.gemm import place_rows
from ...quant import dequantize, no_scales, quantize
from ...runtime.device_gemm import LoadedGemm
from ...runtime.gemm_scales import gemm_weights, scales_by_column
from ...runtime.gemm_tensors import OUTPUT_DTYPES, GemmTensors
from ..timing import GRAPH_LAUNCHES, REPEATS, time_back_to_back, time_graphs
from .point import GemmPoint

SEED = 0
SAMPLED_GROUPS, SAMPLED_ROWS = 6, 32
TOLERANCE = 4e-3  # Relative error of D in BF16: half of it is the rounding of the output.


@dataclass(frozen=True)
class PointInputs:
    """Tensors of a point, scales of A in the kernel's layout, and samples (rows of D, their expected values) of some groups."""

    tensors: GemmTensors
    samples: tuple[tuple[torch.Tensor, torch.Tensor], ...]

    @classmethod
    def draw(cls, point: GemmPoint, device: str = "cuda") -> PointInputs:
        """Quantized normal numbers; each group's weights have a magnitude of their own."""
        p = point.problem
        torch.manual_seed(SEED)
        capacity = max(max(point.counts), 4)
        rows, spans, groups = place_rows(p, point.counts, capacity)
        a, a_sf = quantize(torch.randn(rows, p.k, device=device), p.formats.activations)
        sizes = (0.5 + group / p.num_groups for group in range(p.num_groups))
        drawn = [quantize(torch.randn(p.n, p.k, device=device) * size, p.formats.weights) for size in sizes]
        b, b_sf = (torch.stack(one) for one in zip(*drawn, strict=True))
        scales = scales_by_column(a_sf) if p.formats.scaled else a_sf
        samples = []
        for group, first, count in [one for one in spans if one[2]][:: max(1, len(spans) // SAMPLED_GROUPS)]:
            at = first + torch.randperm(count, device=device)[:SAMPLED_ROWS]
            own = a.view(torch.uint8)[at].view(a.dtype)
            samples.append((at, dequantize(own, a_sf[at].contiguous()) @ dequantize(b[group], b_sf[group]).T))
        lead = (p.num_groups, capacity) if p.kind == MASKED else (rows,)
        if p.kind == MASKED:
            a = a.view(*lead, p.k)
            shape = (*lead, p.k_blocks), (capacity, 1, scales.stride(1))
            scales = scales.as_strided(*shape) if p.formats.scaled else no_scales(a)
        if p.decodes:
            b, b_sf = gemm_weights(b, b_sf, SM90)
        if not p.has_groups:
            b, b_sf = b[0], b_sf[0]
        d = torch.empty(*lead, p.n, dtype=OUTPUT_DTYPES[p.output], device=device)
        return cls(GemmTensors(a, scales, b, b_sf, d, None if groups is None else groups.to(device)), tuple(samples))

    def copies(self, count: int) -> list[PointInputs]:
        return [self, *(replace(self, tensors=replace(self.tensors, b=self.tensors.b.clone())) for _ in range(count - 1))]

    def error(self, d: torch.Tensor) -> float:
        """The largest relative error of a sampled group in D, by norm; NaN where D has one."""
        rows = d.flatten(0, -2)
        return float(torch.stack([(rows[at].double() - want).norm() / want.norm() for at, want in self.samples]).max())


TURN_US = 8_000.0  # of back-to-back launches of a repeat
MOST_LAUNCHES = 50
BEYOND_L2 = 150_000_000  # bytes: three times that of an H200

Launches = dict[str, Callable[[], Any]]  # By the name of a kernel.


def variant(config: GemmConfig) -> str:
    """Tile and choices of a configuration, short."""
    text = f"{config.block_m}x{config.block_n} w{config.warpgroups} c{config.cluster} s{config.num_stages} g{config.group_m}"
    text += f" k{config.k_in_flight}"
    text += f" b{config.burst}" if config.burst > 1 else ""
    return text + "".join(f" {name}" for name in ("swap_ab", "half_tiles", "dynamic_schedule", "split_k") if getattr(config, name))


def loaded(configs: Sequence[GemmConfig], store: ArtifactStore, tensors: GemmTensors) -> Launches:
    """Launches of kernels on the same tensors, by the name of their variant."""
    return {variant(one): partial(LoadedGemm(one, store, tensors.a.device), tensors) for one in configs}


def checked(launches: Launches, inputs: PointInputs) -> dict[str, float]:
    """The error of each kernel's D."""
    errors: dict[str, float] = {}
    for name, launch in launches.items():
        inputs.tensors.d.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        errors[name] = inputs.error(inputs.tensors.d)
    return errors


def run_point(
    point: GemmPoint,
    configs: Sequence[GemmConfig],
    store: ArtifactStore,
    repeats: int = REPEATS,
    others: Callable[[PointInputs], Launches] | None = None,
) -> dict[str, Any]:
    """A record: every kernel's check and times, the fastest first; `others` makes further launches, which take turns with them. Where B is
    decoded, each launch has other copies, so that weights come from memory, not from L2."""
    inputs = PointInputs.draw(point)
    launches = loaded(configs, store, inputs.tensors)
    errors = checked(launches, inputs)
    if point.problem.decodes:
        count = copies_of(inputs.tensors)
        launches = in_rotation([loaded(configs, store, one.tensors) for one in inputs.copies(count)])
    chosen = {variant(one): {key: value for key, value in asdict(one).items() if key != "problem"} for one in configs}
    launches |= {} if others is None else others(inputs)
    entries: list[dict[str, Any]] = []
    graphs = time_graphs(launches)
    slowest = max(times.median for times in graphs.values())
    times = time_back_to_back(launches, max(3, min(MOST_LAUNCHES, int(TURN_US / slowest))), repeats)
    for name in launches:
        figures = {"us": asdict(times[name]), "graph_us": asdict(graphs[name]), "tflops": point.flop / times[name].median / 1e6}
        check = {"error": errors[name], "passed": errors[name] <= TOLERANCE} if name in errors else None
        entries.append({"kernel": name, "config": chosen.get(name), "check": check, **figures})
    del inputs, launches
    torch.cuda.empty_cache()
    return {**asdict(point), "bytes": point.num_bytes, "kernels": sorted(entries, key=lambda one: one["us"]["median"])}


def copies_of(tensors: GemmTensors) -> int:
    return min(GRAPH_LAUNCHES, -(-BEYOND_L2 // (tensors.b.numel() * tensors.b.element_size())))


def in_rotation(found: Sequence[Launches]) -> Launches:
    """Launches of every name in turn, one after the other."""
    turns = {name: cycle([one[name] for one in found]) for name in found[0]}
    return {name: lambda own=own: next(own)() for name, own in turns.items()}  # type: ignore[misc]


def table(record: dict[str, Any]) -> str:
    """A line for each kernel: microseconds back to back and as a graph, and its check."""
    lines = [f"{record['name']}: {record['bytes'] / 1e6:.0f} MB"]
    for one in record["kernels"]:
        check = "" if one["check"] is None else f"{'ok' if one['check']['passed'] else 'WRONG'} {one['check']['error']:.2e}"
        us, replay = one["us"]["median"], one["graph_us"]["median"]
        lines.append(f"  {us:9.1f} {replay:9.1f} us {one['tflops']:6.0f} TFLOPS  {check:15} {one['kernel']}")
    return "\n".join(lines)
