"""The layer on real GPUs, a process each; with one Hopper GPU or none as it stands, on more of them by

torchrun --nproc-per-node 4 examples/08_layer.py
"""

import os

import torch
import torch.distributed as dist

from megamoe_dsl import ExpertWeights, MegaMoE, Problem, disable_multicast, random_weights

if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    print("no Hopper GPU here: examples/05_simulate.py runs the kernel without one")
    raise SystemExit

ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
if ranks > 1:
    disable_multicast()  # before the group is made: NCCL reads its settings then
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))

problem = Problem(2048, 1024, num_experts=16 * ranks, topk=4, num_ranks=ranks, max_tokens_per_rank=512, recipe="fp8xfp8")
weights: ExpertWeights = random_weights(problem, rank, seed=0, device="cuda")  # of this rank's 16 experts, as checkpoints have them
layer = MegaMoE(problem, weights, bounds=[32])

tokens = 100 + rank  # may differ between ranks, and be 0
x = torch.randn(tokens, problem.hidden, dtype=torch.bfloat16, device="cuda")
scores = torch.rand(tokens, problem.num_experts, device="cuda")
topk_weights, topk_idx = scores.softmax(dim=1).topk(problem.topk)

y = layer(x, topk_idx, topk_weights)

# A decoding step in a graph: 20 tokens are within the bound of 32 that a kernel was prepared for, on every rank.
few = [tensor[:20].clone() for tensor in (x, topk_idx, topk_weights)]
out = layer(*few, num_tokens_bound=32)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    layer(*few, num_tokens_bound=32, out=out)
out.zero_()
graph.replay()
layer.synchronize()  # a peer that does not come is an error here, which names who waited, for what and for whom

assert torch.equal(out, y[:20]), "the same tokens give the same bits, whatever kernel and batch"
print(f"rank {rank}: y of {tokens} tokens, norm {y.float().norm():.3f}; experts have received {layer.stats.tolist()}")
if ranks > 1:
    layer.symmetric.close()
    dist.destroy_process_group()
