"""Where trials run: all ranks on the simulator, or one rank on this host's GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from ..artifact.compile import compile_kernel
from ..artifact.store import ArtifactStore
from ..artifact.workers import compile_all
from ..cases import Case
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.unfused.family import stage_configs
from ..reference import error_bound
from ..runtime.buffers import Inputs
from ..runtime.rank_kernel import bind
from ..runtime.simulated import SimulatedMoE, SimulatedStages
from ..runtime.symmetric_memory import SymmetricBuffer

WATCHDOG_NS = 5 * 10**9


class TrialMachine(Protocol):
    """Runs layers, and says how far y may be from the reference with the tensor core's sums."""

    def results(self, config: MegaMoeConfig, cases: Sequence[Case], schedule: int, *, fused: bool) -> list[list[torch.Tensor]]:
        """y of every rank on the CPU, of calls that follow one another on the same buffers.  Raises what goes wrong."""

    def hopper_bound(self, case: Case) -> list[torch.Tensor]:
        """What approximate functions may change: float64 of every rank, where partial sums are Hopper's to the bit."""


class FindingError(Exception):
    """The race detector has found something."""


class SimulatedMachine:
    """Both architectures, any number of ranks, with the race detector."""

    def results(self, config: MegaMoeConfig, cases: Sequence[Case], schedule: int, *, fused: bool) -> list[list[torch.Tensor]]:
        """As of any machine; raises `FindingError` for a race."""
        weights, found = cases[0].weights, []
        if fused:
            moe: SimulatedMoE = SimulatedMoE(compile_kernel(config, line_info=True), weights, seed=schedule)
        else:
            moe = SimulatedStages([compile_kernel(one, line_info=True) for one in stage_configs(config)], weights, seed=schedule)
        for case in cases:
            if case.weights is not weights:
                weights = case.weights
                moe.load_weights(weights)
            y, report = moe([Inputs(*one) for one in zip(case.x, case.x_sf, case.topk_idx, case.topk_weights, strict=True)])
            if report.findings:
                raise FindingError(str(report.findings[0]))
            found.append(y)
        return found

    def hopper_bound(self, case: Case) -> list[torch.Tensor]:
        """Nothing: the simulator's exponential and reciprocal are the reference's."""
        return [torch.zeros(len(x), case.problem.hidden, dtype=torch.float64) for x in case.x]


class GpuMachine:
    """One rank; kernels are compiled into `folder`, all of a layer at a time by `jobs` processes."""

    def __init__(self, folder: Path, jobs: int, device: str = "cuda") -> None:
        self.folder, self.jobs, self.device = folder, jobs, device

    def results(self, config: MegaMoeConfig, cases: Sequence[Case], schedule: int, *, fused: bool) -> list[list[torch.Tensor]]:
        """As of any machine; compiles first, and launches on NaN in y."""
        compile_all(self.folder, [config] if fused else list(stage_configs(config)), self.jobs)
        symmetric = SymmetricBuffer.allocate(config.problem, config.arch, device=self.device)
        moved, found = [case.to(self.device) for case in cases], []
        kernel = bind(ArtifactStore(self.folder), config, symmetric, moved[0].weights[0], WATCHDOG_NS, fused)
        for there in moved:
            kernel.buffers.load_weights(there.weights[0])
            kernel.buffers.load(Inputs(there.x[0], there.x_sf[0], there.topk_idx[0], there.topk_weights[0]))
            y = torch.full((len(there.x[0]), config.problem.hidden), float("nan"), dtype=torch.bfloat16, device=self.device)
            kernel(y)
            kernel.synchronize()
            found.append([y.cpu()])
        return found

    def hopper_bound(self, case: Case) -> list[torch.Tensor]:
        """What approximate exponentials and reciprocals explain."""
        if case.exact:
            return SimulatedMachine().hopper_bound(case)
        return error_bound(case, sums_exact=True, accumulate="hopper")
