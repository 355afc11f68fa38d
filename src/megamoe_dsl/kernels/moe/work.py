"""The least that a rank of the fused layer has to do: FLOP, HBM bytes, NVLink bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ...problem import Problem
from ...recipe import Format


def value_bytes(one: Format) -> float:
    """Bytes of a value with its scales, those that many rows share left out."""
    return one.element_bits / 8 if one.rows > 1 else one.bytes_per_value


@dataclass(frozen=True)
class Load:
    """What routing gives one rank."""

    received: float  # tokens, once per local expert that they chose
    touched: float  # local experts that received any
    remote: float  # fraction of the received tokens that came from other ranks

    @classmethod
    def expected(cls, problem: Problem, tokens: int, remote: float) -> Load:
        """The load of every rank when all route `tokens` tokens, this fraction of them to other ranks, each part uniformly."""
        p, pairs = problem, tokens * problem.topk
        return cls(pairs, p.experts_per_rank * (1 - (1 - 1 / p.num_experts) ** (pairs * p.num_ranks)), remote)


def count_work(problem: Problem, load: Load) -> tuple[float, float, float]:
    """FLOP, bytes between a GPU's memory and its caches, and bytes over links to other GPUs in the direction that has more.

    HBM: weights of the experts that receive any token, once, and activations: x and y of every pair, the intermediate written and read;
    scales of activations are left out.  NVLink, either direction: a remote slot's tokens one way and its results the other, and as many
    slots of the other ranks the other way round, so x and y of every remote pair."""
    p, formats, pairs = problem, problem.formats, load.received
    x, hidden, y = (one.element_bits / 8 for one in (formats.activations, formats.hidden, formats.combine))
    flop = pairs * 6.0 * p.hidden * p.intermediate
    hbm = load.touched * 3 * p.hidden * p.intermediate * value_bytes(formats.weights)
    hbm += pairs * ((x + y) * p.hidden + 2 * hidden * p.intermediate)
    return flop, hbm, pairs * load.remote * p.hidden * (x + y)
