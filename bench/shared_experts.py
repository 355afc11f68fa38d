"""A shared expert in the fused launch, beside a dense layer added outside, in turns in the same process.

    python bench/shared_experts.py prepare FOLDER --preset deepseek-v3 --experts-per-rank 32 --ranks 2      where the DSL is
    python bench/shared_experts.py run FOLDER --preset deepseek-v3 --experts-per-rank 32 --ranks 2 --remote 0.875      where GPUs are

The dense layer is this project's own: a layer of one rank with one expert, which a torch addition follows.
"""

from __future__ import annotations

from typing import Any

from in_turns import InTurns
from shared_layers import shared_configs, shared_point


def line_of(record: dict[str, Any]) -> str:
    """A record in a line."""
    us, graph = record["us"], record["graph_us"]
    times = ", ".join(f"{name} {us[name]['median']:.1f} us ({graph[name]['median']:.1f} in graphs)" for name in us)
    gain = us["outside"]["median"] / us["in the launch"]["median"]
    return f"{record['name']}: {times}; outside / in the launch {gain:.3f}; y {record['difference']:.1e} apart"


if __name__ == "__main__":
    script = InTurns("shared_experts", shared_configs, shared_point, line_of)
    script.main(__doc__, preset="deepseek-v3", tokens="8,64,512,2048", ranks="2")
