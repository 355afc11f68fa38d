"""The ranks of one host among several: checks of the layer (layer_checks.py) in a group that torchrun makes.

On each host, N from 0 on and G its GPUs:

torchrun --nnodes 2 --node-rank N --nproc-per-node G --master-addr HOST --master-port 29500 tests/gpu/node_ranks.py --kernels .megamoe/gpu
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist

from gpu_options import GpuOptions
from layer_checks import work
from megamoe_dsl.runtime.symmetric_memory import disable_multicast
from script_options import at_least

CHECKED = ("reference", "bounds", "graph", "statistics")
"""Of `CHECKS`: what hosts could do differently is where peers are."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=Path, default=Path(".megamoe/gpu"), help="folder that prepare.py has filled")
    parser.add_argument("--first-gpu", type=at_least(0), default=0, help="of this host's ranks: two hosts can be parts of one")
    given = parser.parse_args()
    ranks, rank, local = (int(os.environ[name]) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"))
    torch.cuda.set_device(given.first_gpu + local)
    disable_multicast()
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    host = f"rank {rank} of {ranks}, host {os.environ['GROUP_RANK']}, GPU {torch.cuda.current_device()}"
    print(f"{host}: begins", flush=True)
    work(
        rank,
        list(CHECKED),
        lambda index, _: print(f"{host}: {CHECKED[index]} passed", flush=True),
        ranks=ranks,
        folder=given.kernels,
        options=GpuOptions(),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
