"""The only table of activations: what a layer makes of gate and up between its linears, by name.

Sources: DeepSeek-V4's SwiGLU, article 4.5.4.5; gpt-oss (`torch/model.py` of openai/gpt-oss: alpha 1.702, limit 7, up + 1), which MiniMax-M3
has too; Kimi-K3's SiTU, DeepGEMM pull requests 67 and 78 of sgl-project's fork (beta 4, linear beta 25).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Activation:
    """limited(gate, gate_limit) * sigmoid(slope * gate) * (limited(up, up_limit) + up_offset), limited(x, c) = c * tanh(x / c).

    slope                 of the sigmoid
    up_offset             added to up
    gate_limit, up_limit  None: as they are
    clamp                 activation_clamp of a problem that gives none; None for no clamp
    """

    name: str
    slope: float = 1.0
    up_offset: float = 0.0
    gate_limit: float | None = None
    up_limit: float | None = None
    clamp: float | None = None

    @property
    def clampable(self) -> bool:
        """Whether gate and up may be clamped first: what tanh limits is not clamped too."""
        return self.gate_limit is None and self.up_limit is None


@dataclass(frozen=True)
class GatedProduct:
    """What a kernel makes of gate and up: both clamped, gate activated, their product, times the top-k weight.

    clamp      limit of gate and up before anything else, in BF16; None: none
    fast_math  approximate exponential and reciprocal
    weighed    whether the product is multiplied with the token's top-k weight; else the weight is applied to results
    """

    activation: Activation
    clamp: float | None
    fast_math: bool
    weighed: bool


SILU = "silu"
ACTIVATIONS = {
    one.name: one
    for one in (
        Activation(SILU),
        Activation("swigluoai", slope=1.702, up_offset=1.0, clamp=7.0),
        Activation("situ", gate_limit=4.0, up_limit=25.0),
    )
}
