"""The layer over nodes on GPUs, beside a layer of all experts on each rank.  Not run yet: no machine with GPUs was at hand.

torchrun --nproc-per-node 8 tests/gpu/over_nodes.py --domain 4                             two nodes that are parts of one host, NCCL
torchrun --nnodes 2 --node-rank N --nproc-per-node 8 --master-addr HOST --master-port 29500 tests/gpu/over_nodes.py --domain 8
torchrun --nproc-per-node 2 tests/gpu/over_nodes.py --domain 1 --one-gpu                   nodes that share a GPU, gloo

With --time it prints microseconds of a call for each number of chunks, and bytes that a rank sent.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

import torch
import torch.distributed as dist

from megamoe_dsl import ExpertWeights, MoE, Problem, disable_multicast, random_weights
from megamoe_dsl.options.option import at_least

TURNS = 20


def sum_of_nodes(layer: MoE, call: tuple[torch.Tensor, ...], nodes: int) -> torch.Tensor:
    """What each node's experts give, rounded, added in FP32 in the order of nodes."""
    x, idx, weights = call
    experts, total = layer.problem.num_experts // nodes, torch.zeros(x.shape, device=x.device)
    for node in range(nodes):
        total += layer(x, idx.where(idx // experts == node, -1), weights).float()
    return total.bfloat16()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domain", type=at_least(1), required=True, help="ranks of a node")
    parser.add_argument("--calls", type=at_least(1), default=1000, help="that are compared")
    parser.add_argument("--tokens", type=at_least(1), default=512, help="of a rank, at most")
    parser.add_argument("--one-gpu", action="store_true", help="all ranks on the first GPU, rows by gloo")
    parser.add_argument("--time", action="store_true", help="time calls of 1, 2, 4 and 8 chunks")
    given = parser.parse_args()
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    torch.cuda.set_device(0 if given.one_gpu else int(os.environ["LOCAL_RANK"]))
    disable_multicast()
    dist.init_process_group("gloo" if given.one_gpu else "nccl")
    problem = Problem(2048, 1024, 8 * ranks, 4, ranks, given.tokens, "fp8xfp8")
    every = [random_weights(problem, one, seed=0, device="cuda") for one in range(ranks)]
    names = [name for name, tensor in vars(every[0]).items() if tensor is not None]
    joined = ExpertWeights(**{name: torch.cat([getattr(one, name) for one in every]) for name in names})
    whole, layer = MoE(replace(problem, num_ranks=1), joined, launch="mega_moe"), MoE(problem, every[rank], domain=given.domain)
    generator = torch.Generator("cuda").manual_seed(rank)
    for number in range(given.calls):
        tokens = int(torch.randint(0, given.tokens + 1, (1,), generator=generator, device="cuda"))
        x = torch.randn(tokens, problem.hidden, generator=generator, device="cuda").bfloat16()
        topk_weights, idx = torch.rand(tokens, problem.num_experts, generator=generator, device="cuda").topk(problem.topk)
        expected = sum_of_nodes(whole, (x, idx, topk_weights), ranks // given.domain)
        assert torch.equal(layer(x, idx, topk_weights), expected), f"rank {rank}, call {number}, {tokens} tokens"
    print(f"rank {rank}: {given.calls} calls without a mismatch; {layer.traffic}", flush=True)
    for chunks in (1, 2, 4, 8) if given.time else ():
        timed = MoE(problem, every[rank], domain=given.domain, chunks=chunks)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        timed(x, idx, topk_weights)
        start.record()
        for _ in range(TURNS):
            timed(x, idx, topk_weights)
        end.record()
        torch.cuda.synchronize()
        print(f"rank {rank}: {chunks} chunks, {1e3 * start.elapsed_time(end) / TURNS:.0f} us", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
