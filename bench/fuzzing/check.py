"""A trial's verdict: y against the reference, another tile and the unfused layer, on the simulator or on this host's GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.cases import Case
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.cuda_device import require_cuda
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.moe.unfused.family import stage_configs
from megamoe_dsl.quant import dequantize_e4m3_f32, quantize_weight_e4m3
from megamoe_dsl.reference import error_bound
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.expert_gradients import quantize_experts
from megamoe_dsl.runtime.experts import FP8, moe
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.rank_kernel import RankKernel
from megamoe_dsl.runtime.simulated import SimulatedMoE
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer, device_arch

from .options import WAYS, FuzzOptions
from .trial import MAKERS, AnyTrial, ExpertTrial, Trial, case_of

WATCHDOG_NS = 5 * 10**9


class FindingError(Exception):
    """The race detector has found something."""


class SimulatedMachine:
    """Both architectures, any number of ranks, with the race detector; calls of `moe` take the reference on the CPU."""

    device = "cpu"

    def works(self) -> bool:
        """Whether it still runs trials."""
        return True

    def results(self, config: MegaMoeConfig, cases: Sequence[Case], schedule: int, *, fused: bool) -> list[list[torch.Tensor]]:
        """y of every rank on the CPU, of calls that follow one another on the same buffers.  Raises `FindingError` for a race."""
        weights, found = cases[0].weights, []
        stages = [config] if fused else stage_configs(config)
        moe = SimulatedMoE([compile_kernel(one, line_info=True) for one in stages], weights, seed=schedule)
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
        """What approximate functions may change: nothing, the simulator's exponential and reciprocal are the reference's."""
        return [torch.zeros(len(x), case.problem.hidden, dtype=torch.float64) for x in case.x]


class GpuMachine:
    """One rank; kernels are compiled into `folder`."""

    def __init__(self, folder: Path, device: str = "cuda") -> None:
        self.folder, self.device = folder, device

    def works(self) -> bool:
        """Not after a kernel that was trapped or left its memory: CUDA refuses whatever comes after it in a process."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    def results(self, config: MegaMoeConfig, cases: Sequence[Case], schedule: int, *, fused: bool) -> list[list[torch.Tensor]]:
        """As of the simulated one; compiles first, and launches on NaN in y."""
        symmetric = SymmetricBuffer.allocate(config.problem, config.arch, device=self.device, pool_rows=config.pool_rows)
        moved, found = [case.to(self.device) for case in cases], []
        stages = [ArtifactStore(self.folder).get(one) for one in ([config] if fused else stage_configs(config))]
        kernel = RankKernel(stages, symmetric, moved[0].weights[0], WATCHDOG_NS)
        for there in moved:
            kernel.buffers.load_weights(there.weights[0])
            kernel.buffers.load(Inputs(there.x[0], there.x_sf[0], there.topk_idx[0], there.topk_weights[0]))
            y = torch.full((len(there.x[0]), config.problem.hidden), float("nan"), dtype=torch.bfloat16, device=self.device)
            kernel(y)
            kernel.synchronize()
            found.append([y.cpu()])
        return found

    def hopper_bound(self, case: Case) -> list[torch.Tensor]:
        if case.exact:
            return SimulatedMachine().hopper_bound(case)
        return error_bound(case, sums_exact=True, accumulate="hopper")


TrialMachine = SimulatedMachine | GpuMachine


def machine_of(given: FuzzOptions) -> tuple[TrialMachine, tuple[str, ...]]:
    """Where trials run, and the architectures that it has.  Raises `ProblemError` for a host without a GPU that has a kernel."""
    if not given.gpu:
        return SimulatedMachine(), tuple(MAKERS)
    return GpuMachine(given.artifacts), (device_arch(require_cuda("cuda", "--gpu")).name,)


Results = Sequence[Sequence[torch.Tensor]]
"""y of every call, of every rank."""


def check_trial(trial: AnyTrial, machine: TrialMachine) -> str:
    try:
        return experts_wrong(trial, machine.device) if isinstance(trial, ExpertTrial) else find_wrong(trial, machine)
    except Exception as error:  # whatever a trial of valid arguments raises is what the fuzzer looks for
        return f"{type(error).__name__}: {error}"


def find_wrong(trial: Trial, machine: TrialMachine) -> str:
    """As `check_trial`, but raises what the layer raises."""
    config = trial.config
    cases = [case_of(config.problem, call) for call in trial.calls]
    found = machine.results(config, cases, trial.schedule, fused=True)
    for number, (case, y) in enumerate(zip(cases, found, strict=True), 1):
        if wrong := unlike_reference(case, y, machine, promoted=config.arch == SM90):
            return f"call {number}: {wrong} elements of y differ from the reference by more than the bound"
    if trial.other is not None and (wrong := unequal_bits(found, machine.results(trial.other, cases, trial.schedule, fused=True))):
        return f"{wrong} elements of y differ from those of another tile"
    if trial.unfused and has_stages(config) and (wrong := unequal_bits(found, machine.results(config, cases, trial.schedule, fused=False))):
        return f"{wrong} elements of y differ from those of the unfused layer"
    return ""


def experts_wrong(trial: ExpertTrial, device: str) -> str:
    """The same of calls of `moe`."""
    problem = trial.problem
    layer = MegaMoE(problem, symmetric=SymmetricBuffer.allocate(problem, device=device))
    for number, (call, way) in enumerate(zip(trial.calls, trial.ways, strict=True), 1):
        case = case_of(problem, call).to(device)
        weights, x = case.weights[0], case.x[0]
        layer.load_weights(weights)
        scaled = problem.formats.scaled
        given = {
            **{"x": dequantize_e4m3_f32(x, case.x_sf[0]).bfloat16() if scaled else x, "w1": weights.fc1, "w2": weights.fc2},
            **{"w1_sf": weights.fc1_sf if scaled else None, "w2_sf": weights.fc2_sf if scaled else None},
            **{"topk_idx": case.topk_idx[0], "topk_weights": case.topk_weights[0]},
            **{"activation": problem.activation, "activation_clamp": problem.activation_clamp if scaled else None},
        }
        y = layer(given["x"], case.topk_idx[0], case.topk_weights[0])
        pairs = list(_CALLED[way](given, y))
        if wrong := sum(unequal_bits([[one]], [[other]]) for one, other in pairs):
            return f"call {number}, {way}: {wrong} elements differ"
    return ""


Compared = Sequence[tuple[torch.Tensor, torch.Tensor]]
Given = dict[str, Any]


def called(given: Given, y: torch.Tensor) -> Compared:
    return [(moe(**given), y)]


def in_graph(given: Given, y: torch.Tensor) -> Compared:
    """After a call that loads kernels; the graph runs twice."""
    found = moe(**given)
    if found.is_cuda:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = moe(**given)
        for _ in range(2):
            graph.replay()
    return [(found, y)]


def compiled(given: Given, y: torch.Tensor) -> Compared:
    """Whole, for any number of tokens."""
    torch.compiler.reset()  # each layer takes a few of the compilations that torch allows a function
    return [(torch.compile(moe, fullgraph=True, backend="aot_eager", dynamic=True)(**given), y)]


def trained(given: Given, y: torch.Tensor) -> Compared:
    """Gate and up stored, and computed again, of weights that the call quantizes, and that were before: the same gradients."""
    names, pairs = ("x", "w1", "w2", "topk_weights"), list[tuple[torch.Tensor, torch.Tensor]]()
    for recipe in (None, FP8):
        found = []
        for again in (False, True):
            leaves = {name: given[name].detach().clone().requires_grad_() for name in names}
            made = quantize_experts(leaves["w1"], leaves["w2"]) if recipe and again else None
            own = moe(**{**given, **leaves}, recipe=recipe, recompute=again, quantized=made)
            own.backward(y)
            found.append([own.detach(), *(one.grad for one in leaves.values() if one.grad is not None)])
        pairs += zip(*found, strict=True)
    return [(pairs[0][0], y), *pairs]


def quantized(given: Given, y: torch.Tensor) -> Compared:
    """By the call, or before it."""
    (w1, w1_sf), (w2, w2_sf) = (quantize_weight_e4m3(given[name]) for name in ("w1", "w2"))
    return [(moe(**given, recipe=FP8), moe(**{**given, "w1": w1, "w1_sf": w1_sf, "w2": w2, "w2_sf": w2_sf}))]


_CALLED = dict(zip(WAYS, (called, in_graph, compiled, trained, quantized), strict=True))


def has_stages(config: MegaMoeConfig) -> bool:
    try:
        return bool(stage_configs(config))
    except ConfigError:
        return False


def unlike_reference(case: Case, y: Sequence[torch.Tensor], machine: TrialMachine, *, promoted: bool) -> int:
    """Elements farther from the reference than explained: with partial sums of Hopper's tensor core, where they are promoted, or exact."""
    wanted = case.reference("hopper" if promoted else torch.float64).y
    bounds = machine.hopper_bound(case) if promoted else case.bound()
    return sum(int((~((got.double() - one.double()).abs() <= limit)).sum()) for got, one, limit in zip(y, wanted, bounds, strict=True))


def unequal_bits(one: Results, other: Results) -> int:
    """Elements that do not have the same bits."""
    pairs = (pair for calls in zip(one, other, strict=True) for pair in zip(*calls, strict=True))
    return sum(int((a.view(torch.uint8) != b.view(torch.uint8)).view(*a.shape, a.itemsize).any(-1).sum()) for a, b in pairs)
