"""A layer over nodes: rows over the network, a launch on each node, and rows of results back, in chunks that overlap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

import numpy as np

from ..arch import GPUS, Gpu
from ..kernels.registry import find_kernel
from ..problem import Problem, ProblemError
from ..target import TYPICAL_GPUS, Target
from .calibration import CALIBRATED, Calibration, calibration_of
from .launch import RankLoad
from .prediction import Prediction, prefers

CHUNKS = (1, 2, 4, 8)
NETWORK_SMS = 16  # Of a GPU, left to NCCL where a call has several chunks.
MOST_TOKENS = 4096  # Calls of more tokens get the chunks of this many.
DRAWS, SEED = 2000, 0
ENTRY_BYTES = 8  # Of a top-k entry that is sent: an expert and a weight.
NETWORK, HOST = "network", "host"


@dataclass(frozen=True)
class Network:
    """The network between nodes, per GPU, and the host's overheads."""

    gbits: float  # of each GPU's card, in each direction
    latency_us: float  # of an empty collective
    # host time of a call, and of each of its chunks, without a CUDA graph
    host_us: tuple[float, float] = (0.0, 0.0)

    def us(self, num_bytes: float) -> float:
        """Microseconds to send `num_bytes` of a rank."""
        return num_bytes / (self.gbits / 8 * 1e3)


USUAL = Network(400.0, 30.0, (800.0, 630.0))
"""A card for each GPU; latency is an assumption, the host's times those of an H200's host (docs/lab/nodes.md)."""


@dataclass(frozen=True)
class Spread:
    """Averages per token under uniform routing: nodes that it needs, and nodes, ranks and experts outside its own node."""

    nodes: float
    away_nodes: float
    away_ranks: float
    away_experts: float

    @classmethod
    def of(cls, num_experts: int, topk: int, nodes: int, ranks: int, groups: int = 1, group_limit: int = 1) -> Spread:
        """With group-limited routing to `group_limit` of `groups` groups, for a token on the first node.  Raises `ProblemError`."""
        if num_experts % (nodes * ranks):
            raise ProblemError("nodes", nodes, f"such that {ranks} ranks each divide {num_experts} experts")
        if groups < 1 or num_experts % groups:
            raise ProblemError("groups", groups, f"a divisor of {num_experts} experts")
        if not 1 <= group_limit <= groups or topk > num_experts // groups * group_limit:
            raise ProblemError("group_limit", group_limit, f"between 1 and {groups} groups, with {topk} experts or more in them")
        rng = np.random.default_rng(SEED)
        scores = rng.random((DRAWS, num_experts))
        kept = np.argsort(rng.random((DRAWS, groups)), axis=1) < group_limit
        scores[~np.repeat(kept, num_experts // groups, axis=1)] = -1.0
        chosen = np.argsort(-scores, axis=1)[:, :topk]
        by_node, by_rank = (np.eye(parts)[chosen // (num_experts // parts)].max(axis=1) for parts in (nodes, nodes * ranks))
        away = (chosen // (num_experts // nodes) != 0).sum(axis=1)
        return cls(by_node.sum(1).mean(), by_node[:, 1:].sum(1).mean(), by_rank[:, ranks:].sum(1).mean(), away.mean())


@dataclass(frozen=True)
class NodePrediction:
    """A call with `tokens` tokens on every rank of `nodes` nodes."""

    tokens: int
    nodes: int
    chunks: int
    us: float  # of the call, with the number of chunks that makes it shortest
    network_us: float  # and launch_us: how long the network and the launches are busy
    launch_us: float
    sent: float  # bytes that a rank sends to other nodes, to be computed and as results
    limit: str  # what is busy longest
    spread: Spread

    @classmethod
    def of(
        cls, problem: Problem, tokens: int, nodes: int, network: Network, gpu: Gpu, calibration: Calibration, groups: int, group_limit: int
    ) -> NodePrediction:
        """The layer `problem` of all experts, on `problem.num_ranks` GPUs of each node.  Raises `ProblemError`."""
        spread = Spread.of(problem.num_experts, problem.topk, nodes, problem.num_ranks, groups, group_limit)
        to_nodes, results = bytes_of_a_row(problem)
        best, latency = None, network.latency_us if nodes > 1 else 0.0
        for chunks in CHUNKS:
            part, host = tokens / chunks, network.host_us[0] + chunks * network.host_us[1]
            sms = gpu.num_sms - (NETWORK_SMS if chunks > 1 else 0)
            # a node's rows have the top-k entries of tokens that this node has, on average
            rows, topk = max(1, ceil(part * spread.nodes)), round(problem.topk / spread.nodes)
            node = replace(problem, num_experts=problem.num_experts // nodes, topk=topk, max_tokens_per_rank=rows)
            config = find_kernel("mega_moe").choose(node, Target(gpu.arch, sms, gpu.name), rows)
            launch = Prediction.of(config, RankLoad.uniform(node, rows), calibration)
            there, back = (latency + network.us(part * spread.away_nodes * one) for one in (to_nodes, results))
            busy = {name: chunks * launch.us * share for name, share in launch.busy.items()}
            busy |= {NETWORK: latency + chunks * (there + back), HOST: host}  # counts of rows go first
            us = max(latency + makespan(chunks, there, launch.us, back), host)
            limit, sent = max(busy, key=busy.__getitem__), tokens * spread.away_nodes * (to_nodes + results)
            found = cls(tokens, nodes, chunks, us, busy[NETWORK], chunks * launch.us, sent, limit, spread)
            if best is not None and not prefers(us, best.us):
                break
            best = found
        assert best is not None
        return best


@lru_cache
def chunks_of(problem: Problem, ranks: int, tokens: int, target: Target, groups: int = 1, group_limit: int = 1) -> int:
    """The number of chunks with the shortest predicted call on the network `USUAL`.  Raises `ProblemError`."""
    gpu = str(target.gpu)
    known = gpu if gpu in CALIBRATED.values() else TYPICAL_GPUS[target.arch.name]
    node, nodes, tokens = replace(problem, num_ranks=ranks), problem.num_ranks // ranks, min(tokens, MOST_TOKENS)
    return NodePrediction.of(node, tokens, nodes, USUAL, GPUS[known], calibration_of(known), groups, group_limit).chunks


def bytes_of_a_row(problem: Problem) -> tuple[float, float]:
    """Bytes of a token sent to a node, and of its results sent back."""
    tokens, results = problem.formats.activations, problem.formats.combine
    scales = tokens.scales_of(problem.hidden) * (4 if problem.formats.promoted else 1)
    return tokens.row_bytes(problem.hidden) + scales + ENTRY_BYTES * problem.topk, results.bytes_per_value * problem.hidden


def makespan(chunks: int, there: float, launch: float, back: float) -> float:
    """When the last results are back.  The network sends a chunk's rows, then results of the one before; one chunk computes at a time."""
    network = computed = 0.0
    for chunk in range(chunks):
        arrived = network = network + there
        if chunk:
            network = max(network, computed) + back
        computed = max(computed, arrived) + launch
    return max(network, computed) + back
