"""How much less dispatch sends between ranks with one copy of a token for each rank than with one for each expert.

    python studies/ep_traffic.py [--preset flash,pro,deepseek-v3] [--tokens 4096] [--ranks 8] [--seed 0] [--simulate]

For uniform routing, for routing that most tokens share a few experts of (skewed), and for routing limited to half of eight groups of
experts, which are the ranks' where there are eight.  The rows are counted in tables as the kernels get them.  With --simulate the kernels
run, with and without token saving, on as many simulated ranks with that many tokens, channels being 256 and 128 (try --tokens 8): the bytes
are then those that copies move between ranks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import cache

import torch

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.cases import random_inputs, random_weights
from megamoe_dsl.cases.routing import draw_experts, group_bias, routing_bias
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, EpConfig, GemmCombineConfig
from megamoe_dsl.presets.shapes import PRESETS
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.ep.buffers import RowActivations
from megamoe_dsl.runtime.ep.simulated import SimulatedEp
from megamoe_dsl.runtime.ep.traffic import Traffic

GROUPS, CHOSEN = 8, 4
CHANNELS = 256
Bias = Callable[[Problem, int, torch.Generator], torch.Tensor]
ROUTINGS: dict[str, Bias] = {
    "uniform": lambda problem, count, generator: routing_bias(problem, generator),
    "skewed": lambda problem, count, generator: routing_bias(problem, generator, skew=True),
    "group-limited": lambda problem, count, generator: group_bias(problem, count, GROUPS, CHOSEN, generator),
}


def draw(problem: Problem, routing: str, seed: int) -> list[torch.Tensor]:
    """Experts of a batch with all tokens on every rank."""
    count = problem.max_tokens_per_rank
    idx = []
    for rank in range(problem.num_ranks):
        generator = torch.Generator().manual_seed(seed)  # of the experts that are popular on every rank
        bias = ROUTINGS[routing](problem, count, generator)
        idx.append(draw_experts(problem, count, bias, torch.Generator().manual_seed(seed + 1 + rank)))
    return idx


def count_rows(names: Sequence[str], tokens: int, ranks: int, seed: int) -> None:
    """The table of what the tables say."""
    print("| Shape | Routing | Rows, one per expert | Rows, one per rank | Saved | Bytes saved per rank |")
    print("|---|---|---|---|---|---|")
    for name in names:
        problem = PRESETS[name].problem(tokens, num_ranks=ranks)
        for routing in ROUTINGS:
            found = Traffic.of(problem, draw(problem, routing, seed))
            per_rank = found.bytes_saved / problem.num_ranks / 1e6
            print(f"| {name} | {routing} | {found.pairs} | {found.tokens} | {found.saved:.1%} | {per_rank:.1f} MB |")


@cache
def compiled(config: EpConfig) -> Artifact:
    """Once for each configuration."""
    return compile_kernel(config)


def crossed(problem: Problem, idx: Sequence[torch.Tensor], *, token_saving: bool) -> tuple[int, int]:
    """Bytes that copies of dispatch and of combine move between simulated ranks whose tokens have these experts."""
    tile: dict[str, int] = {"block_m": 64, "block_n": 64, "num_sms": 2}
    kernels = DispatchGemmConfig(problem, **tile, token_saving=token_saving), GemmCombineConfig(problem, **tile, scatter=False)
    weights = [random_weights(problem, rank, seed=0) for rank in range(problem.num_ranks)]
    ep = SimulatedEp(*map(compiled, kernels), weights, race=False)
    drawn = [random_inputs(problem, rank, len(one), seed=0) for rank, one in enumerate(idx)]
    rows, dispatched = ep.dispatch([Inputs(one.x, one.x_sf, experts, one.topk_weights) for one, experts in zip(drawn, idx, strict=True)])
    acts = [RowActivations.of(torch.zeros(len(one), problem.intermediate, dtype=torch.bfloat16)) for one in rows]
    _, combined = ep.combine(acts, [len(one) for one in idx])
    return dispatched.crossed, combined.crossed


def count_bytes(names: Sequence[str], tokens: int, ranks: int, seed: int) -> None:
    """The table of what the kernels do."""
    print("| Experts of | Routing | Dispatch, one row per expert | Dispatch, one row per rank | Saved | By the tables | Combine |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        problem = PRESETS[name].problem(tokens, num_ranks=ranks, recipe="fp8xfp8", hidden=CHANNELS, intermediate=CHANNELS // 2)
        for routing in ROUTINGS:
            idx = draw(problem, routing, seed)
            (every, results), (once, _) = (crossed(problem, idx, token_saving=saving) for saving in (False, True))
            saved = f"{1 - once / every:.1%} | {Traffic.of(problem, idx).saved:.1%}"
            print(f"| {name} | {routing} | {every:,} | {once:,} | {saved} | {results:,} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="flash,pro,deepseek-v3", help="shapes by name")
    parser.add_argument("--tokens", type=int, default=4096, help="of each rank")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--simulate", action="store_true", help="count what copies of the kernels move between simulated ranks")
    asked = parser.parse_args()
    count = count_bytes if asked.simulate else count_rows
    count(asked.preset.split(","), asked.tokens, asked.ranks, asked.seed)


if __name__ == "__main__":
    main()
