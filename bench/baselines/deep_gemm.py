"""DeepGEMM's MegaMoE (the sgl-deep-gemm wheel, 0.1.5 to 0.2.5) on this project's inputs: FP8 x FP8 on SM90, FP8 x FP4 on SM100."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from baselines.baseline import require_plain
from baselines.site import import_from
from megamoe_dsl.bench.timing import synchronize
from megamoe_dsl.cases import TokenInputs
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights


class DeepGemm:
    """On SM90.  Its releases share these functions; the buffer has the capacity asked for, so that they choose a schedule for the tokens at
    hand without being told a bound."""

    PACKAGE: ClassVar[str] = "deep_gemm"
    RECIPE: ClassVar[str] = "fp8xfp8"

    def __init__(self, site: Path, problem: Problem, weights: ExpertWeights) -> None:
        require_plain(problem)
        self.library = import_from(self.PACKAGE, site)
        self.version = str(getattr(self.library, "__version__", "unknown"))
        self.problem = problem
        self.weights = self.transform(weights)
        self.buffer: Any = None

    def transform(self, weights: ExpertWeights) -> Any:
        """This rank's weights in its order: of Linear1, and of Linear2."""
        return self.library.transform_weights_for_mega_moe_sm90((weights.fc1, weights.fc1_sf), (weights.fc2, weights.fc2_sf))

    def launch(self, y: torch.Tensor) -> None:
        """Its kernel's call."""
        self.library.fp8_mega_moe(y, *self.weights, self.buffer, activation_clamp=self.problem.activation_clamp)

    @property
    def num_bytes(self) -> int:
        """Of the symmetric buffer of this rank."""
        return int(self.buffer.buffer.nbytes)

    def allocate(self, problem: Problem) -> None:
        """A symmetric buffer for the capacity of `problem`; all ranks together."""
        self.problem = p = problem
        self.buffer = self.library.get_symm_buffer_for_mega_moe(
            dist.group.WORLD, p.num_experts, p.max_tokens_per_rank, p.topk, p.hidden, p.intermediate
        )

    def load(self, inputs: TokenInputs) -> None:
        """Copies a batch into the symmetric buffer; all ranks together."""
        synchronize()
        buffer, tokens = self.buffer, inputs.x.shape[0]
        for target, source in zip((buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights), inputs, strict=True):
            target[:tokens].copy_(source.view(target.dtype))
        synchronize()

    def __call__(self, y: torch.Tensor) -> None:
        self.launch(y)

    def free(self) -> None:
        """Gives the symmetric buffer back, if there is one; all ranks together."""
        if self.buffer is not None:
            torch.cuda.synchronize()
            dist.barrier()
            self.buffer.destroy()
            self.buffer = None


class DeepGemmSm100(DeepGemm):
    """On SM100.  Four UE8M0 scales are one int32 there; those of weights are M-major."""

    RECIPE: ClassVar[str] = "fp8xfp4"

    def transform(self, weights: ExpertWeights) -> Any:
        """This rank's weights in its order: of Linear1, and of Linear2."""
        pairs = ((weights.fc1, weights.fc1_sf), (weights.fc2, weights.fc2_sf))
        return self.library.transform_weights_for_mega_moe(*((codes.view(torch.int8), words_of(sf)) for codes, sf in pairs))

    def launch(self, y: torch.Tensor) -> None:
        """Its kernel's call."""
        self.library.fp8_fp4_mega_moe(y, *self.weights, self.buffer, activation_clamp=self.problem.activation_clamp)


def words_of(scales: torch.Tensor) -> torch.Tensor:
    """uint8 [E, rows, K/32] as int32 [E, rows, K/128], M-major."""
    return scales.contiguous().view(torch.int32).transpose(1, 2).contiguous().transpose(1, 2)
