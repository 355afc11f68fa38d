"""A timeline of one launch, from the schedule: the phases of some SMs."""

from __future__ import annotations

from ..kernels.moe.config import MegaMoeConfig
from .chart import Bar, BarChart, Lane, Picture
from .paper_launch import DISPATCH, PaperLaunch
from .schedule import tile_kind
from .subject import sample_counts
from .workers import Worker, some_workers, worker_word, workers

LANES = 6


def draw_timeline(config: MegaMoeConfig, tokens: int) -> Picture:
    """Two lanes for each of some SMs: what dispatch warps do, and what works on tiles."""
    launch = PaperLaunch.of(config, sample_counts(config, tokens), tokens)
    shown = some_workers(config, LANES)
    lanes = [lane for worker in shown for lane in _lanes(launch, worker)]
    everyone, word = len(workers(config)), worker_word(config)
    note = (
        f"From the schedule, with a sampled routing of {tokens} tokens a rank: not measured. The unit of time is one K block of a tile; "
        f"pull and combine take as long as reading as many bytes of weights does, counting is drawn as {DISPATCH:.0f} K block, and loads, "
        f"epilogues and barriers take no time. A tile is named by its local expert. {len(shown)} of {everyone} {word} are drawn."
    )
    return Picture(
        "Timeline of one launch", note, (BarChart(tuple(lanes), max(bar.end for lane in lanes for bar in lane.bars), "K blocks"),)
    )


def _lanes(launch: PaperLaunch, worker: Worker) -> tuple[Lane, Lane]:
    dispatch = (Bar(0.0, DISPATCH, "dispatch"), Bar(DISPATCH, launch.pull_end(worker), "pull"))
    bars, now = list[Bar](), 0.0
    for tile in launch.of_worker(worker):
        bars += [Bar(now, tile.start, "wait"), Bar(tile.start, tile.end, tile_kind(tile.block), str(tile.block.expert))]
        now = tile.end
    bars += [Bar(now, launch.combine, "wait"), Bar(launch.combine, launch.combine_end(worker), "combine")]
    return (
        Lane("dispatch", tuple(bar for bar in dispatch if bar.end > bar.start), group=worker.name),
        Lane("tiles", tuple(bar for bar in bars if bar.end > bar.start), group=worker.name),
    )
