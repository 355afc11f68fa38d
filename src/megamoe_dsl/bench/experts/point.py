"""A point: a model's layer, all of its experts on one GPU, and so many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...kernels.expert_routing.layer import ExpertLayer
from ...kernels.gemm.problem import SCALE_BLOCK
from ...layouts.arith import align
from ...presets import PRESETS
from ...problem import ProblemError
from ..roofline import known_ceilings, measured_gpu

LAYERS = {
    **{
        name: ExpertLayer(align(one.hidden, SCALE_BLOCK), align(one.intermediate, SCALE_BLOCK), one.num_experts, one.topk)
        for name, one in PRESETS.items()
    },
    "qwen3-next": ExpertLayer(2048, 512, 512, 10),
}
"""The shapes of presets with all experts on one GPU and SiLU, channels filled up to whole blocks of scales; Qwen3-Next-80B-A3B's numbers
are those of its public `config.json`."""
MEASURED = ("deepseek-v3", "qwen3-next")
TOKENS = (64, 256, 1024, 4096, 16384)
FC1_VARIANTS: tuple[dict[str, Any], ...] = ({"block_m": 64, "warpgroups": 1}, {"block_m": 128, "warpgroups": 2})


@dataclass(frozen=True)
class ExpertPoint:
    """`name` of `LAYERS`."""

    name: str
    tokens: int

    @property
    def layer(self) -> ExpertLayer:
        """The model's."""
        return LAYERS[self.name]

    @property
    def flop(self) -> float:
        """Of both linears."""
        layer = self.layer
        return 6.0 * self.tokens * layer.topk * layer.hidden * layer.intermediate

    def hbm_bytes(self, met: int) -> float:
        """The least that the launches read and write with so many experts met: their weights once, tokens in BF16 and E4M3, each row's
        product and result stored and loaded, y."""
        layer, rows = self.layer, self.tokens * self.layer.topk
        weights = 3.0 * met * layer.hidden * layer.intermediate
        return weights + self.tokens * layer.hidden * (2 + 1 + 1 + 2) + rows * (2 * layer.intermediate + 2 * 2 * layer.hidden)

    def least_us(self, met: int, gpu: str) -> float:
        """Microseconds that a GPU's measured ceilings (bench/ceilings.json) allow."""
        limits = known_ceilings()[measured_gpu(gpu)]
        return 1e6 * max(self.flop / limits["fp8_flops"], self.hbm_bytes(met) / limits["hbm_bytes"])

    def __str__(self) -> str:
        return f"{self.name}:{self.tokens}"


def find_points(texts: Sequence[str]) -> tuple[ExpertPoint, ...]:
    """MODEL:TOKENS each, or those of `MEASURED` by default.  Raises `ProblemError`."""
    if not texts:
        return tuple(ExpertPoint(name, tokens) for name in MEASURED for tokens in TOKENS)
    points = []
    for text in texts:
        name, _, tokens = text.partition(":")
        if name not in LAYERS or not tokens.isdigit() or not int(tokens):
            raise ProblemError("points", text, f"MODEL:TOKENS with one of {', '.join(LAYERS)}")
        points.append(ExpertPoint(name, int(tokens)))
    return tuple(points)
