"""Pictures of buffers in global memory: workspace and symmetric buffer."""

from __future__ import annotations

from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.layouts.symmetric import symmetric_buffer
from ..kernels.moe.layouts.workspace import workspace
from ..layouts.region import Region
from .amount import in_bytes
from .chart import Bar, BarChart, Lane, Picture

KINDS = {
    "x": "inputs",
    "x_sf": "inputs",
    "topk_idx": "inputs",
    "topk_weights": "inputs",
    "fc1_sf": "scales",
    "fc2_sf": "scales",
    "combine": "results",
}
SCALE = "To scale, but for what is narrower than a line and drawn as a line."


def region_chart(region: Region, default: str) -> BarChart:
    """One lane per field, with its shape, offset and size."""
    lanes = []
    for place in region:
        field = place.field
        shape = f"{field.dtype.name} [{', '.join(map(str, field.shape))}]"
        bar = Bar(place.offset, place.end, KINDS.get(field.name, default))
        lanes.append(Lane(field.name, (bar,), (shape, f"{place.offset:,}", in_bytes(field.num_bytes))))
    return BarChart(tuple(lanes), region.size, "bytes", ("shape", "offset", "size"))


def draw_workspace(config: MegaMoeConfig, tokens: int) -> Picture:
    """The control words at the start of a rank's buffer."""
    region = workspace(config.problem, config.arch)
    size = in_bytes(region.size)
    note = f"Control words of one rank, {size}. Zero before the first launch; a launch leaves all but the counters zero. {SCALE}"
    return Picture("Workspace", note, (region_chart(region, "control"),))


def draw_symmetric(config: MegaMoeConfig, tokens: int) -> Picture:
    """A rank's whole buffer, which the others write into."""
    whole, control = symmetric_buffer(config.problem, config.arch), {p.field.name for p in workspace(config.problem, config.arch)}
    shown = [p for p in whole if p.field.name not in control]
    chart = region_chart(whole, "token pool")
    lanes = [lane for lane in chart.lanes if lane.name not in control]
    size = in_bytes(workspace(config.problem, config.arch).size)
    first = Lane("workspace", (Bar(0, shown[0].offset, "control"),), (f"{len(control)} fields", "0", size))
    most = config.problem.max_tokens_per_rank
    note = f"One rank's buffer, {in_bytes(whole.size)} for up to {most} tokens; the same offsets on every rank. {SCALE}"
    return Picture("Symmetric buffer", note, (BarChart((first, *lanes), chart.extent, chart.unit, chart.headings),))
