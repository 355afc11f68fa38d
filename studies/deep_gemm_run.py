"""A kernel of DeepGEMM on simulated ranks, on the data of a case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from megamoe_dsl.arch import Arch
from megamoe_dsl.cases import Case
from megamoe_dsl.problem import Problem
from megamoe_dsl.sim import Assumptions, GlobalMemory, Launch, Report, Simulator

ALIGNMENT = 1024


class Peer(Protocol):
    """What a run needs to know of a kernel whose ranks share a symmetric buffer."""

    problem: Problem
    num_sms: int

    @property
    def arch(self) -> Arch:
        """Of the kernel."""

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""

    @property
    def num_threads(self) -> int:
        """Of a CTA."""

    @property
    def dynamic_smem(self) -> int:
        """Bytes of a CTA."""

    @property
    def offsets(self) -> dict[str, int]:
        """Byte offset of every buffer of the symmetric buffer, `end` among them."""

    def ptx(self) -> str:
        """Of the kernel."""

    def prepare(self, sym: torch.Tensor) -> None:
        """What the host writes into a rank's zeroed buffer, once."""

    def weights(self, case: Case, rank: int) -> Any:
        """A rank's weights in the kernel's order: an object whose fields are tensors."""

    def arguments(self, sym: list[int], rank: int, y: int, stats: int, tokens: int, weights: Any) -> tuple[int | bytes, ...]:
        """Of a launch; addresses of all ranks' buffers, of y and of the statistics."""


def aligned_zeros(size: int) -> torch.Tensor:
    """uint8 [size] at a multiple of `ALIGNMENT`, as an allocation on a GPU is."""
    room = torch.zeros(size + ALIGNMENT, dtype=torch.uint8)
    return room[-room.data_ptr() % ALIGNMENT :][:size]


def load(peer: Peer, sym: torch.Tensor, case: Case, rank: int) -> None:
    """A rank's tokens into its buffer."""
    for name in ("x", "x_sf", "topk_idx", "topk_weights"):
        values = getattr(case, name)[rank].contiguous().view(torch.uint8).flatten()
        sym[peer.offsets[name] :][: len(values)] = values


def run_peer(peer: Peer, case: Case, launches: int = 1, seed: int = 0, race: bool = True) -> tuple[list[list[torch.Tensor]], Report]:
    """So many launches without a pause on zeroed buffers: y of each, per rank bf16 [T, hidden], and what the simulator saw.

    Raises SimError.
    """
    memory, ranks, tokens = GlobalMemory(), range(peer.problem.num_ranks), [len(x) for x in case.x]
    buffers = [aligned_zeros(peer.offsets["end"]) for _ in ranks]
    addresses = [sym.data_ptr() for sym in buffers]
    weights = [peer.weights(case, rank) for rank in ranks]
    stats = [torch.zeros(peer.problem.experts_per_rank, dtype=torch.int32) for _ in ranks]
    outputs = [[torch.empty(max(1, n), peer.problem.hidden, dtype=torch.bfloat16) for n in tokens] for _ in range(launches)]
    for rank, sym in enumerate(buffers):
        peer.prepare(sym)
        load(peer, sym, case, rank)
        memory.add(sym, name="sym", rank=rank)
        memory.add(stats[rank], name="stats", rank=rank)
        for name, tensor in vars(weights[rank]).items():
            memory.add(tensor, name=name, rank=rank, read_only=True)
        for number, y in enumerate(outputs):
            memory.add(y[rank], name=f"y{number}", rank=rank, initialised=False)
    shape = {"grid": (peer.num_sms, 1, 1), "block": (peer.num_threads, 1, 1), "cluster": (peer.cluster, 1, 1)}

    def launch(rank: int, y: Sequence[torch.Tensor]) -> Launch:
        args = peer.arguments(addresses, rank, y[rank].data_ptr(), stats[rank].data_ptr(), tokens[rank], weights[rank])
        return Launch(**shape, dynamic_smem=peer.dynamic_smem, args=args, rank=rank)

    report = Simulator(peer.ptx(), memory, seed=seed, race=race, assumptions=Assumptions(store_uninitialised=True)).run(
        [launch(rank, y) for y in outputs for rank in ranks]
    )
    return [[y[:n] for y, n in zip(some, tokens, strict=True)] for some in outputs], report
