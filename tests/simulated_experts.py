"""A MoE layer on one GPU on the simulator: its four kernels on the CPU, one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.kernels.decode.config import ABSENT, LINE
from megamoe_dsl.runtime.expert_call import ExpertCall
from megamoe_dsl.runtime.gemm_tensors import GemmTensors
from megamoe_dsl.runtime.simulated import launch_of, memory_of, simulate_gemm
from megamoe_dsl.sim import GlobalMemory, Launch, Report, Simulator

MOST_INSTRUCTIONS = 5_000_000
"""Warp instructions after which a launch of a few tokens counts as endless. The longest test takes 710,000."""


def simulate_launches(artifact: Artifact, memory: GlobalMemory, arguments: Mapping[str, int], **options: Any) -> Report:
    """A kernel's launch with these arguments; `options` of the `Simulator`.  Raises `SimError` for a fault or a deadlock."""
    return Simulator(None, memory, **options).run([launch_of(artifact, arguments)])


def simulate_experts(artifacts: Sequence[Artifact], call: ExpertCall, **options: Any) -> tuple[torch.Tensor, list[Report]]:
    """y, and what the simulator saw of each launch; `artifacts` of the layer's configurations in their order, `options` of the `Simulator`.

    Raises `ProblemError` for tensors that do not fit, and `SimError` for a fault or a deadlock.
    """
    call.check()
    route, fc1, fc2, total = artifacts
    reports = [simulate_route(route, call, **options)]
    reports.append(simulate_gemm(fc1, call.fc1, **options))
    for first, part in call.fc2.items():
        reports += [simulate_gemm(fc2, part, **options), _launch(total, call, call.sum_tensors(first), options)]
    return call.y, reports


def simulate_route(artifact: Artifact, call: ExpertCall, **options: Any) -> Report:
    """The first launch."""
    counter, (read, written) = torch.zeros(1, dtype=torch.int32), call.route_tensors()
    report = _launch(artifact, call, (read, {**written, "counter": counter}), options)
    assert not counter.any()
    return report


def simulate_decode(artifact: Artifact, call: ExpertCall, *, launches: int = 1, **options: Any) -> Report:
    """A layer of a few tokens, `launches` times without a pause between them, into `call.y`."""
    return simulate_decoding(artifact, read_by(call), call.y, launches=launches, **options)


def read_by(call: ExpertCall) -> dict[str, torch.Tensor]:
    """Tensors that the launch of a call reads, by argument."""
    call.check()
    weights = {name: one for name, one in call.operands._asdict().items() if one is not None}
    return {"x": call.x, "topk_idx": call.topk_idx, "topk_weights": call.topk_weights, **weights}


def simulate_decoding(
    artifact: Artifact, read: dict[str, torch.Tensor], y: torch.Tensor, *, launches: int = 1, stats: Any = None, **options: Any
) -> Report:
    """The same of tensors by argument; scales that are not among them are 0."""
    return simulate_stream([(artifact, read, {"y": y} | ({} if stats is None else {"stats": stats}))] * launches, **options)


def simulate_stream(launches: Sequence[tuple[Artifact, dict[str, torch.Tensor], dict[str, torch.Tensor]]], **options: Any) -> Report:
    """Launches of kernels that share a stream's memory, each with the tensors that it reads and those that it writes."""
    (size,) = {artifact.config.memory for artifact, *_ in launches}
    memory = torch.full((size // 4,), ABSENT, dtype=torch.int32)
    memory[: LINE // 4] = 0
    stream, reads, writes = [], {}, {memory.data_ptr(): ("memory", memory)}
    for number, (artifact, read, written) in enumerate(launches):
        written["y"].fill_(7.0)
        places = {name: one.data_ptr() for name, one in {**read, **written, "memory": memory}.items()}
        arguments = {**dict.fromkeys(("w1_sf", "w2_sf", "stats"), 0), **places, "num_tokens": len(written["y"])}
        stream.append(launch_of(artifact, arguments))
        for tensors, found in ((read, reads), (written, writes)):
            found.update({one.data_ptr(): (f"{name} of launch {number}", one) for name, one in tensors.items()})
    limited = {"most_instructions": MOST_INSTRUCTIONS, **options}  # CTAs wait in loops: what never comes would be waited for for ever
    report = Simulator(None, memory_of(dict(reads.values()), dict(writes.values())), **limited).run(stream)
    assert memory[0] == (-(1 << 31) if len(launches) % 2 else 0)  # the next launch writes in the region that this one has cleared
    assert (memory[LINE // 4 :].view(2, -1)[len(launches) % 2] == ABSENT).all()
    return report


def _launch(
    artifact: Artifact, call: ExpertCall, tensors: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]], options: dict[str, Any]
) -> Report:
    return simulate_launches(artifact, memory_of(*tensors), call.arguments(tensors), **options)


def gemm_launch(artifact: Artifact, tensors: GemmTensors, counter: int) -> Launch:
    problem = artifact.config.problem
    return launch_of(artifact, tensors.arguments(problem, tensors.operands(problem), counter))


def launches_of(artifacts: Sequence[Artifact], call: ExpertCall, counters: Sequence[int]) -> list[Launch]:
    """The four, for a run of a whole stream, in which each begins as early as on a GPU; `counters` are addresses of words that are 0, for
    Linear2 and for the others.

    Besides the tensors of the call they touch its workspace, and nothing else."""
    call.check()
    (route, fc1, fc2, total), (own, counter) = artifacts, counters
    return [
        launch_of(route, {**call.arguments(call.route_tensors()), "counter": counter}),
        gemm_launch(fc1, call.fc1, counter),
        *(
            launch
            for first, part in call.fc2.items()
            for launch in (gemm_launch(fc2, part, own), launch_of(total, call.arguments(call.sum_tensors(first))))
        ),
    ]
