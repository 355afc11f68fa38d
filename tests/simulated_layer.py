"""The layer on BF16 tokens in the simulator: on every rank's stream `pre_dispatch`, then the fused kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.kernels.moe.inputs_config import PreDispatchConfig
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.buffers import check_layout
from megamoe_dsl.runtime.simulated import CPU, SimulatedMoE
from megamoe_dsl.runtime.watchdog import naming_the_wait
from megamoe_dsl.sim import Launch, Report, load


class Bf16Inputs(NamedTuple):
    """Tokens of a rank to be quantized: x is bf16 [T, hidden]; the others as of `Inputs`."""

    x: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor


class SimulatedLayer:
    """Two kernels of one layer on the same simulated ranks; the race detector watches across them.

    moe           the fused kernel, its weights and buffers
    pre_dispatch  the kernel of `PreDispatchConfig` for the same problem and architecture

    Raises `ProblemError` for another kernel.
    """

    def __init__(self, moe: SimulatedMoE, pre_dispatch: Artifact) -> None:
        config, fused = pre_dispatch.config, moe.artifact.config
        if not isinstance(config, PreDispatchConfig) or (config.problem, config.arch) != (fused.problem, fused.arch):
            raise ProblemError("pre_dispatch.config", config, f"a PreDispatchConfig for {fused.problem} on {fused.arch}")
        self.moe, self.pre_dispatch = moe, pre_dispatch

    def __call__(self, inputs: Sequence[Bf16Inputs]) -> tuple[list[torch.Tensor], Report]:
        """One call of the layer on all ranks: (y per rank, bf16 [T, hidden]; what the simulator saw).

        Raises `ProblemError` before anything runs when an input is malformed, and as `SimulatedMoE` does.
        """
        moe, problem = self.moe, self.pre_dispatch.config.shared_experts.routed
        if len(inputs) != problem.num_ranks:
            raise ProblemError("len(inputs)", len(inputs), f"num_ranks = {problem.num_ranks}")
        for rank, one in enumerate(inputs):
            check_layout(problem, f"inputs[{rank}].", one.x, None, one.topk_idx, one.topk_weights)
        outputs = [torch.empty(max(1, len(one.x)), problem.hidden, dtype=torch.bfloat16, device=CPU) for one in inputs]
        given = [Bf16Inputs(one.x, one.topk_idx.long(), one.topk_weights) for one in inputs]
        memory = moe.visible(outputs)
        for rank, one in enumerate(given):
            for name, tensor in one._asdict().items():
                if tensor.numel():
                    memory.add(tensor, name=name, rank=rank, read_only=True)
        launches = []
        for rank, (one, out) in enumerate(zip(given, outputs, strict=True)):
            if len(one.x):
                launches.append(self._quantize(rank, one))
            launches += moe.launches(rank, len(one.x), out)
        moe.simulator.memory = memory
        with naming_the_wait(*moe.ranks):
            report = moe.simulator.run(launches)
        return [out[: len(one.x)] for one, out in zip(given, outputs, strict=True)], report

    def _quantize(self, rank: int, inputs: Bf16Inputs) -> Launch:
        config, kernel = self.pre_dispatch.config, self.pre_dispatch.kernel
        pointers = {name: tensor.data_ptr() for name, tensor in inputs._asdict().items()}
        counts = {"num_tokens": len(inputs.x)}
        if config.shared:
            counts["first_shared"] = config.shared_experts.first_of(rank)
        if "factors" in kernel.arguments(config).names:
            pointers["factors"] = self.moe.ranks[rank].address("factors")
        return Launch(
            grid=(config.num_sms, 1, 1),
            block=(config.num_threads, 1, 1),
            args=kernel.arguments(config).pack(sym=self.moe.ranks[rank].sym.data_ptr(), **pointers, **counts),
            rank=rank,
            program=load(self.pre_dispatch.ptx),
        )
