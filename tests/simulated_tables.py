"""The kernel that makes routing tables, and both halves of a layer, on simulated ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.kernels.moe.halves.config import RoutingTablesConfig
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.ep.buffers import Activation, EpBuffers, RowActivations
from megamoe_dsl.runtime.ep.simulated import SimulatedEp
from megamoe_dsl.runtime.simulated import WATCHDOG_NS
from megamoe_dsl.runtime.watchdog import naming_the_wait
from megamoe_dsl.sim import GlobalMemory, Launch, Report, Simulator, load

MOST_INSTRUCTIONS = 2_000_000
"""Warp instructions after which launches count as endless.  The longest test takes 170,000."""


def simulate_tables(
    artifact: Artifact,
    ranks: Sequence[EpBuffers],
    tokens: Sequence[int],
    *,
    launches: int = 1,
    seed: int = 0,
    race: bool = True,
    watchdog_ns: int = WATCHDOG_NS,
) -> Report:
    """Launches of `routing_tables` without a pause, on ranks whose symmetric buffers have the experts of so many tokens, and in them then
    the tables (`EpBuffers.tables`).  What the simulator saw.

    Raises `ProblemError` for an artifact of another kernel, `WatchdogError` when a wait exceeds its limit, and `SimError` for a fault or a
    deadlock.
    """
    config = artifact.config
    if not isinstance(config, RoutingTablesConfig):
        raise ProblemError("artifact", type(config).__name__, "an Artifact of a RoutingTablesConfig")
    memory, launched = GlobalMemory(), []
    peers = torch.tensor([rank.sym.data_ptr() for rank in ranks], dtype=torch.int64)
    memory.add(peers, name="peers", read_only=True)
    for rank, (buffers, count) in enumerate(zip(ranks, tokens, strict=True)):
        memory.add(buffers.sym, name="sym", rank=rank)
        memory.add(buffers.watchdog, name="watchdog", rank=rank)
        launched.append(
            Launch(
                grid=(config.num_sms, 1, 1),
                block=(config.num_threads, 1, 1),
                dynamic_smem=artifact.dynamic_smem,
                args=artifact.kernel.parameters(config, buffers.arguments(config, peers.data_ptr(), rank, watchdog_ns, num_tokens=count)),
                rank=rank,
                program=load(artifact.ptx),
            )
        )
    with naming_the_wait(*ranks):
        return Simulator(None, memory, seed=seed, race=race, most_instructions=MOST_INSTRUCTIONS).run(launched * launches)


def both_halves(ep: SimulatedEp, inputs: Sequence[Inputs], activation: Activation) -> tuple[list[torch.Tensor], list[Report]]:
    """y of every rank, and the reports of dispatch and of combine, with an activation of every rank's rows in between."""
    rows, first = ep.dispatch(inputs)
    acts = [RowActivations.of(activation(one), ep.problem.formats.activations) for one in rows]
    y, second = ep.combine(acts, [one.num_tokens for one in inputs])
    return y, [first, second]
