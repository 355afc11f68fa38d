"""Activations, biases and top-k weights in combine beside silu without any of them, in turns in the same process.

    python bench/activations.py prepare FOLDER      where the DSL is
    python bench/activations.py run FOLDER      where GPUs are

By default Flash's share of eight ranks on one GPU.
"""

from __future__ import annotations

from typing import Any

from activation_layers import PLAIN, activation_configs, activation_point
from in_turns import InTurns


def line_of(record: dict[str, Any]) -> str:
    """A record in a line."""
    graph = record["graph_us"]
    plain = graph[PLAIN]["median"]
    times = ", ".join(f"{name} {one['median']:.1f} ({one['median'] / plain - 1:+.1%})" for name, one in graph.items())
    return f"{record['name']}: us in graphs: {times}"


if __name__ == "__main__":
    script = InTurns("activations", activation_configs, activation_point, line_of)
    script.main(__doc__, preset="flash", experts_per_rank=32, tokens="8,512,2048", ranks="1")
