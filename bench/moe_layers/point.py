"""A point: a model's layer, all of its experts on one GPU, and so many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from megamoe_dsl.blocks.gemm.problem import GEMM_RECIPES, SCALE_BLOCK
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.moe.roofline import CEILINGS, measured_gpu
from megamoe_dsl.layouts.arith import align
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.problem import ProblemError

LAYERS = {
    **{
        name: ExpertLayer(align(one.hidden, SCALE_BLOCK), align(one.intermediate, SCALE_BLOCK), one.num_experts, one.topk)
        for name, one in PRESETS.items()
    },
    "qwen3-next": ExpertLayer(2048, 512, 512, 10),
    "deepseek-v2": ExpertLayer(5120, 1536, 160, 6),
    "glm-5.2-share": ExpertLayer(6144, 2048, 32, 8),
    "flash-share": ExpertLayer(4096, 2048, 32, 6),
    "pro-share": ExpertLayer(7168, 3072, 48, 6),
}
"""The shapes of presets with all experts on one GPU and SiLU, channels filled up to whole blocks of scales; the numbers of
Qwen3-Next-80B-A3B and of DeepSeek-V2 are those of their public `config.json`.  Shares are of one of eight GPUs."""
MEASURED = ("deepseek-v3", "qwen3-next")
TOKENS = (64, 256, 1024, 4096, 16384)
FC1_VARIANTS: tuple[dict[str, Any], ...] = tuple({"block_m": 64 * one, "warpgroups": one, "cluster": 2, "burst": 1} for one in (1, 2))


@dataclass(frozen=True)
class ExpertPoint:
    """`name` of `LAYERS`, in the number formats of a `recipe`."""

    name: str
    tokens: int
    recipe: str = GEMM_RECIPES[0]

    @property
    def layer(self) -> ExpertLayer:
        """The model's."""
        return replace(LAYERS[self.name], recipe=self.recipe)

    @property
    def flop(self) -> float:
        """Of both linears."""
        layer = self.layer
        return 6.0 * self.tokens * layer.topk * layer.hidden * layer.intermediate

    def hbm_bytes(self, met: int) -> float:
        """The least that the launches read and write with so many experts met: their weights once, tokens in BF16, and in E4M3 where they
        are quantized, each row's product and result stored and loaded, y."""
        layer, rows = self.layer, self.tokens * self.layer.topk
        formats = layer.formats
        weights = met * formats.weights.row_bytes(3 * layer.hidden * layer.intermediate)
        quantized = 2 * formats.activations.row_bytes(layer.hidden) if formats.scaled else 0
        moved = 2 * (formats.hidden.row_bytes(layer.intermediate) + 2 * layer.hidden)
        return float(weights + self.tokens * (2 * 2 * layer.hidden + quantized) + rows * moved)

    def least_us(self, met: int, gpu: str) -> float:
        """Microseconds that a GPU's measured ceilings (`CEILINGS`) allow; twice as many FP8 products as of BF16."""
        limits = CEILINGS[measured_gpu(gpu)]
        flops = limits.fp8_flops * 8 / self.layer.formats.activations.element_bits
        return 1e6 * max(self.flop / flops, self.hbm_bytes(met) / limits.hbm_bytes)

    def __str__(self) -> str:
        return f"{self.name}:{self.tokens}" + (f":{self.recipe}" if self.recipe != GEMM_RECIPES[0] else "")


def find_points(texts: Sequence[str]) -> tuple[ExpertPoint, ...]:
    """MODEL:TOKENS or MODEL:TOKENS:RECIPE each, or those of `MEASURED` by default.  Raises `ProblemError`."""
    if not texts:
        return tuple(ExpertPoint(name, tokens) for name in MEASURED for tokens in TOKENS)
    points = []
    for text in texts:
        name, tokens, recipe = [*text.split(":", 2), "", ""][:3]
        if name not in LAYERS or not tokens.isdigit() or not int(tokens) or recipe not in ("", *GEMM_RECIPES):
            raise ProblemError("points", text, f"MODEL:TOKENS or MODEL:TOKENS:RECIPE with one of {', '.join(LAYERS)}")
        points.append(ExpertPoint(name, int(tokens), recipe or GEMM_RECIPES[0]))
    return tuple(points)
