"""Memory of one rank of an expert-parallel layer: its symmetric buffer, weights, and the record of a wait that gave up."""

from __future__ import annotations

import torch

from ...kernels.ep_moe.config import DispatchGemmConfig
from ...kernels.ep_moe.layouts.pool import first_rows, pool_rows
from ...kernels.ep_moe.layouts.symmetric import symmetric_buffer
from ...kernels.ep_moe.layouts.watchdog import describe
from ...problem import Problem
from ...quant import ExpertWeights
from ..buffers import Inputs
from ..watchdog import new_record
from .routing import RoutingTables


class EpBuffers:
    """`weights` are the local experts', in checkpoint order, which the kernels read as they are; all memory is on their device.

    sym       the symmetric buffer, uint8
    watchdog  the record
    """

    def __init__(self, problem: Problem, weights: ExpertWeights) -> None:
        self.problem, self.weights, self.region = problem, weights, symmetric_buffer(problem)
        device = weights.fc1.device
        self.sym = torch.zeros(self.region.size, dtype=torch.uint8, device=device)
        self.watchdog = new_record(device)

    def view(self, name: str) -> torch.Tensor:
        """A field of the symmetric buffer."""
        return self.region.view(self.sym, name)

    def store(self, inputs: Inputs, tables: RoutingTables) -> None:
        """What this rank has, and where it goes, for the next launch."""
        for name in ("x", "x_sf", "topk_idx", "topk_weights"):
            tensor = getattr(inputs, name)
            self.view(name)[: len(tensor)].copy_(tensor)
        for name in ("send_pairs", "recv_pairs", "expert_rows"):
            self.view(name).copy_(getattr(tables, name))
        self.view("pair_rows")[: len(tables.pair_rows)].copy_(tables.pair_rows)

    def new_rows(self) -> torch.Tensor:
        """Memory for Linear1 of all rows: bf16 [pool rows, 2 intermediate]."""
        return torch.empty(pool_rows(self.problem), 2 * self.problem.intermediate, dtype=torch.bfloat16, device=self.sym.device)

    def expert_slices(self) -> list[slice]:
        """Rows of each local expert, from the present tables; waits for the device."""
        rows = self.view("expert_rows").tolist()
        return [slice(first, first + count) for first, count in zip(first_rows(rows), rows, strict=False)]

    def dispatch_arguments(self, config: DispatchGemmConfig, peers: int, out: torch.Tensor, rank: int, watchdog_ns: int) -> dict[str, int]:
        """Of `dispatch_grouped_gemm` (kernels/ep_moe/arguments.py)."""
        return {
            "sym": self.sym.data_ptr(),
            "peers": peers,
            "weights": self.weights.fc1.data_ptr(),
            "weights_sf": self.weights.fc1_sf.data_ptr(),
            "out": out.data_ptr(),
            "rank": rank,
            "watchdog": self.watchdog.data_ptr(),
            "watchdog_ns": watchdog_ns,
        }

    def watchdog_message(self) -> str | None:
        """What the record says, None when it is empty."""
        return describe(self.watchdog.tolist())
