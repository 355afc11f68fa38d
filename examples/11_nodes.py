"""The layer over several nodes, a process for each GPU; on a machine without GPUs over gloo.  Two nodes are made up on a single host.

torchrun --nnodes 2 --node-rank N --nproc-per-node 8 --master-addr HOST --master-port 29500 examples/11_nodes.py     on hosts N = 0, 1
torchrun --nproc-per-node 4 examples/11_nodes.py                                                                   one host
"""

import os

import torch
import torch.distributed as dist

from megamoe_dsl import MoE, Problem, disable_multicast, random_weights

if "RANK" not in os.environ:
    print(__doc__)
    raise SystemExit

ranks, rank, gpus = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]), torch.cuda.is_available()
if gpus:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    disable_multicast()  # before the group is made: NCCL reads its settings then
dist.init_process_group("nccl" if gpus else "gloo")

hidden, intermediate, tokens = (2048, 1024, 500) if gpus else (256, 128, 5)
problem = Problem(hidden, intermediate, num_experts=16 * ranks, topk=4, num_ranks=ranks, max_tokens_per_rank=512, recipe="fp8xfp8")
weights = random_weights(problem, rank, seed=0, device="cuda" if gpus else "cpu")  # of this rank's 16 experts
# By default ranks of a host are a node; here torchrun's hosts may be parts of one.
layer = MoE(problem, weights, domain=min(int(os.environ["LOCAL_WORLD_SIZE"]), ranks // 2))

x = torch.randn(tokens + rank, hidden, device=weights.fc1.device).bfloat16()
topk_weights, topk_idx = torch.rand(len(x), problem.num_experts, device=x.device).softmax(dim=1).topk(problem.topk)
y = layer(x, topk_idx, topk_weights)
print(f"rank {rank}: y of {len(x)} tokens, norm {y.float().norm():.3f}; to other nodes: {layer.traffic}")
dist.destroy_process_group()
