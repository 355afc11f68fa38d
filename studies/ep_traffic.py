"""How much less dispatch sends between ranks with one copy of a token for each rank than with one for each expert.

    python studies/ep_traffic.py [--preset flash,pro,deepseek-v3] [--tokens 4096] [--ranks 8] [--seed 0]

For uniform routing, for routing that most tokens share a few experts of (skewed), and for routing limited to half of eight groups of
experts, which are the ranks' where there are eight.  The rows are counted in tables as the kernels get them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from megamoe_dsl.cases.routing import draw_experts, group_bias, routing_bias
from megamoe_dsl.presets.shapes import PRESETS
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.ep.traffic import Traffic

GROUPS, CHOSEN = 8, 4
Bias = Callable[[Problem, int, torch.Generator], torch.Tensor]
ROUTINGS: dict[str, Bias] = {
    "uniform": lambda problem, count, generator: routing_bias(problem, generator),
    "skewed": lambda problem, count, generator: routing_bias(problem, generator, skew=True),
    "group-limited": lambda problem, count, generator: group_bias(problem, count, GROUPS, CHOSEN, generator),
}


def traffic(problem: Problem, routing: str, seed: int) -> Traffic:
    """Of a batch with all tokens on every rank."""
    count = problem.max_tokens_per_rank
    idx = []
    for rank in range(problem.num_ranks):
        generator = torch.Generator().manual_seed(seed)  # of the experts that are popular on every rank
        bias = ROUTINGS[routing](problem, count, generator)
        idx.append(draw_experts(problem, count, bias, torch.Generator().manual_seed(seed + 1 + rank)))
    return Traffic.of(problem, idx)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="flash,pro,deepseek-v3", help="shapes by name")
    parser.add_argument("--tokens", type=int, default=4096, help="of each rank")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print("| Shape | Routing | Rows, one per expert | Rows, one per rank | Saved | Bytes saved per rank |")
    print("|---|---|---|---|---|---|")
    for name in asked.preset.split(","):
        problem = PRESETS[name].problem(asked.tokens, num_ranks=asked.ranks)
        for routing in ROUTINGS:
            found = traffic(problem, routing, asked.seed)
            per_rank = found.bytes_saved / problem.num_ranks / 1e6
            print(f"| {name} | {routing} | {found.pairs} | {found.tokens} | {found.saved:.1%} | {per_rank:.1f} MB |")


if __name__ == "__main__":
    main()
