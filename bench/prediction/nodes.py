"""A layer over nodes: rows over the network, a launch on each node, and rows of results back, in chunks that overlap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from megamoe_dsl.arch import Gpu
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.runtime.nodes import NETWORK_SMS
from megamoe_dsl.target import Target

from .calibration import calibration_of
from .launch import RankLoad
from .prediction import Subject, prefers

CHUNKS = (1, 2, 4, 8)
GROUPS = 8  # Of experts, where a token's experts belong to a limited number of groups.
LATENCY_US = 30.0  # Of an empty collective; an assumption.
DRAWS, SEED = 2000, 0
ENTRY_BYTES = 8  # Of a top-k entry that is sent: an expert and a weight.
NETWORK = "network"


@dataclass(frozen=True)
class Spread:
    """Averages per token under uniform routing: nodes that it needs, and nodes, ranks and experts outside its own node."""

    nodes: float
    away_nodes: float
    away_ranks: float
    away_experts: float

    @classmethod
    def of(cls, problem: Problem, nodes: int, group_limit: int | None) -> Spread:
        """For a token on the first node, with experts of at most `group_limit` of `GROUPS` groups.  Raises `ProblemError`."""
        experts, topk, ranks = problem.num_experts, problem.topk, problem.num_ranks
        if experts % (nodes * ranks):
            raise ProblemError("nodes", nodes, f"such that {ranks} ranks each divide {experts} experts")
        rng = np.random.default_rng(SEED)
        scores = rng.random((DRAWS, experts))
        if group_limit is not None:
            if experts % GROUPS or not 1 <= group_limit <= GROUPS or topk > experts // GROUPS * group_limit:
                raise ProblemError("group_limit", group_limit, f"1 to {GROUPS} groups of {experts} experts, with {topk} experts or more")
            kept = np.argsort(rng.random((DRAWS, GROUPS)), axis=1) < group_limit
            scores[~np.repeat(kept, experts // GROUPS, axis=1)] = -1.0
        chosen = np.argsort(-scores, axis=1)[:, :topk]
        by_node, by_rank = (np.eye(parts)[chosen // (experts // parts)].max(axis=1) for parts in (nodes, nodes * ranks))
        away = (chosen // (experts // nodes) != 0).sum(axis=1)
        return cls(by_node.sum(1).mean(), by_node[:, 1:].sum(1).mean(), by_rank[:, ranks:].sum(1).mean(), away.mean())


@dataclass(frozen=True)
class NodePrediction:
    """A call with `tokens` tokens on every rank of `nodes` nodes, in a CUDA graph."""

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
    def of(cls, problem: Problem, tokens: int, nodes: int, gbits: int, gpu: Gpu, group_limit: int | None) -> NodePrediction:
        """The layer `problem` of all experts, on `problem.num_ranks` GPUs of each node, each with a card of `gbits` Gb/s in each direction.
        Raises `ProblemError`."""
        if gbits < 1:
            raise ProblemError("network", gbits, "1 or more Gb/s")
        spread = Spread.of(problem, nodes, group_limit)
        to_nodes, results = bytes_of_a_row(problem)
        best, latency = None, LATENCY_US if nodes > 1 else 0.0
        for chunks in CHUNKS:
            part = tokens / chunks
            sms = gpu.num_sms - (NETWORK_SMS if chunks > 1 else 0)
            # a node's rows have the top-k entries of tokens that this node has, on average
            rows, topk = max(1, ceil(part * spread.nodes)), round(problem.topk / spread.nodes)
            node = replace(problem, num_experts=problem.num_experts // nodes, topk=topk, max_tokens_per_rank=rows)
            config = find_kernel("mega_moe").choose(node, Target(gpu.arch, sms, gpu.name), rows)
            launch = Subject.of(config, RankLoad.uniform(node, rows)).predict(calibration_of(gpu.name))
            there, back = (latency + part * spread.away_nodes * one / (gbits / 8 * 1e3) for one in (to_nodes, results))
            busy = {name: chunks * launch.us * share for name, share in launch.busy.items()}
            busy[NETWORK] = latency + chunks * (there + back)  # counts of rows go first
            us = latency + makespan(chunks, there, launch.us, back)
            limit, sent = max(busy, key=busy.__getitem__), tokens * spread.away_nodes * (to_nodes + results)
            found = cls(tokens, nodes, chunks, us, busy[NETWORK], chunks * launch.us, sent, limit, spread)
            if best is not None and not prefers(us, best.us):
                break
            best = found
        assert best is not None
        return best


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
