"""The schedule: which tile each CTA pair works on."""

from __future__ import annotations

from ..kernels.mega_moe.sm100.config import KernelConfig
from ..schedule import LINEAR1, Scheduler
from .buffers import sample_counts
from .chart import Bar, BarChart, Lane, Picture

CLUSTERS = 12  # lanes of the picture
TILES = 24  # of a lane


def draw_schedule(config: KernelConfig, tokens: int) -> Picture:
    counts = sample_counts(config, tokens)
    shown = sorted({round(i * (config.num_clusters - 1) / max(1, CLUSTERS - 1)) for i in range(min(CLUSTERS, config.num_clusters))})
    lanes, tiles = [], {}
    for cluster in shown:
        blocks = list(Scheduler.blocks(config, counts, cluster))
        tiles[cluster] = len(blocks)
        bars, time = [], 0.0
        for block in blocks[:TILES]:
            linear1 = block.phase == LINEAR1
            duration = float(config.l1_k_blocks if linear1 else config.l2_k_blocks)
            bars.append(Bar(time, time + duration, "linear1" if linear1 else "linear2", f"{block.expert}"))
            time += duration
        lanes.append(Lane(f"SM {2 * cluster}, {2 * cluster + 1}", tuple(bars), (str(len(blocks)),)))
    extent = max((lane.bars[-1].end for lane in lanes if lane.bars), default=1.0)
    ahead = f"Linear1 is {config.lead} of {config.problem.experts_per_rank} experts ahead of Linear2"
    note = (
        f"{ahead}; sampled routing of {tokens} tokens a rank, the first {TILES} tiles of some SM pairs. Green is Linear1, orange "
        "Linear2, the number is the local expert; a tile is as wide as it has K blocks. Waits are not drawn."
    )
    return Picture("Schedule", note, (BarChart(tuple(lanes), extent, "K blocks", ("tiles",)),))
