"""Of DeepGEMM's `testing` and `utils.dist`, what its test of the SM90 MegaMoE imports; the names are theirs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import torch
import torch.distributed as dist

_place = {"local_rank": 0}


def get_arch_major() -> int:
    """Of the current device's compute capability."""
    return torch.cuda.get_device_capability()[0]


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """1 - 2 x.y / (x.x + y.y): 0 for equal tensors, and for two of zeros."""
    x, y = x.double(), y.double()
    squares = float((x * x + y * y).sum())
    return 1.0 - 2.0 * float((x * y).sum()) / squares if squares else 0.0


def init_dist(local_rank: int, num_local_ranks: int) -> tuple[int, int, dist.ProcessGroup]:
    """A process group of this host's processes, and CUDA as torch's default device: (rank, ranks, group)."""
    _place["local_rank"] = local_rank
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    address = f"tcp://{os.environ.get('MASTER_ADDR', '127.0.0.1')}:{os.environ.get('MASTER_PORT', '8361')}"
    dist.init_process_group("nccl", init_method=address, world_size=num_local_ranks, rank=local_rank, device_id=device)
    torch.set_default_device("cuda")
    return dist.get_rank(), dist.get_world_size(), dist.new_group(list(range(num_local_ranks)))


def dist_print(text: str = "", once_in_node: bool = False) -> None:
    """Prints on the first rank, or on all; a barrier."""
    if not once_in_node or _place["local_rank"] == 0:
        print(text, flush=True)
    dist.barrier()


def uneven_all_gather(tensor: torch.Tensor, dim: int = 0, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """All ranks' tensors, joined along a dimension in which their sizes may differ."""
    moved = tensor.movedim(dim, 0).contiguous()
    rest, ranks = moved.shape[1:], dist.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.long, device=tensor.device) for _ in range(ranks)]
    dist.all_gather(sizes, torch.tensor([moved.shape[0]], device=tensor.device), group=group)
    rows = [int(size) for size in sizes]
    own = torch.zeros(max(rows), math.prod(rest) * moved.itemsize, dtype=torch.uint8, device=tensor.device)  # NCCL knows bytes
    own[: moved.shape[0]] = moved.view(moved.shape[0], -1).view(torch.uint8) if moved.numel() else 0
    gathered = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(gathered, own, group=group)
    joined = torch.cat([one[:count] for one, count in zip(gathered, rows, strict=True)])
    return joined.view(tensor.dtype).view(sum(rows), *rest).movedim(0, dim)


def bench_kineto(run: Callable[[], object], kernel_names: str, num_tests: int = 30, **_: object) -> float:
    """Mean seconds of a call between CUDA events, whatever kernels it launches."""
    run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(num_tests):
        run()
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds / num_tests / 1e3
