"""Matrices that models multiply with, by name: GEMM problems.

Numbers are those of the models' public `config.json` files: `hidden_size`, `num_attention_heads`, `num_key_value_heads`, `head_dim`,
`q_lora_rank`, `kv_lora_rank`, `qk_nope_head_dim`, `qk_rope_head_dim`, `v_head_dim`, and `moe_intermediate_size` of shared experts.  Those
of routed experts follow from the layers' shapes (shapes.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..blocks.gemm.problem import PACKED, SCALE_BLOCK, GemmProblem
from ..layouts.arith import align
from ..problem import ProblemError
from .shapes import PRESETS


@dataclass(frozen=True)
class Projection:
    """One matrix: n outputs of k inputs, of `num_groups` experts where there are several."""

    name: str
    n: int
    k: int
    num_groups: int = 1

    @property
    def problem(self) -> GemmProblem:
        """Dense, or packed for several experts."""
        return GemmProblem(self.n, self.k) if self.num_groups == 1 else GemmProblem(self.n, self.k, PACKED, self.num_groups)


@dataclass(frozen=True)
class LatentAttention:
    """Attention whose queries and keys pass through a latent vector (DeepSeek-V2 technical report, 2.1).

    nope, rope, value  channels of a head: of keys without and with a position, and of values
    """

    hidden: int
    heads: int
    q_rank: int
    kv_rank: int
    nope: int = 128
    rope: int = 64
    value: int = 128

    def projections(self, model: str) -> list[Projection]:
        """Down to the latent vectors, all at once; up from each; out of the heads."""
        return [
            Projection(f"{model}/qkv_a", self.q_rank + self.kv_rank + self.rope, self.hidden),
            Projection(f"{model}/q_b", self.heads * (self.nope + self.rope), self.q_rank),
            Projection(f"{model}/kv_b", self.heads * (self.nope + self.value), self.kv_rank),
            Projection(f"{model}/o", self.hidden, self.heads * self.value),
        ]


@dataclass(frozen=True)
class GroupedAttention:
    """Attention whose query heads share heads of keys and values."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int = 128

    def projections(self, model: str) -> list[Projection]:
        """Into queries, keys and values at once; out of the heads."""
        return [
            Projection(f"{model}/qkv", (self.heads + 2 * self.kv_heads) * self.head_dim, self.hidden),
            Projection(f"{model}/o", self.hidden, self.heads * self.head_dim),
        ]


def shared_expert(model: str, hidden: int, intermediate: int) -> list[Projection]:
    """Its gate and up at once, and down."""
    return [
        Projection(f"{model}/shared_gate_up", 2 * intermediate, hidden),
        Projection(f"{model}/shared_down", hidden, intermediate),
    ]


def routed_experts() -> list[Projection]:
    """The experts of one rank in every preset's layer; channels are filled up to whole blocks of scales, of which GEMMs take no parts."""
    found = []
    for one in PRESETS.values():
        hidden, intermediate = (align(channels, SCALE_BLOCK) for channels in (one.hidden, one.intermediate))
        found.append(Projection(f"{one.name}/fc1", 2 * intermediate, hidden, one.experts_per_rank))
        found.append(Projection(f"{one.name}/fc2", hidden, intermediate, one.experts_per_rank))
    return found


PROJECTIONS = {
    one.name: one
    for one in (
        *LatentAttention(7168, 128, 1536, 512).projections("deepseek-v3"),
        *shared_expert("deepseek-v3", 7168, 2048),
        *LatentAttention(7168, 64, 1536, 512).projections("kimi-k2"),
        *shared_expert("kimi-k2", 7168, 2048),
        *GroupedAttention(4096, 64, 4).projections("qwen3-235b-a22b"),
        *routed_experts(),
    )
}


def projection(name: str) -> Projection:
    """The matrix of this name.  Raises `ProblemError` with the known names."""
    if name not in PROJECTIONS:
        raise ProblemError("preset", name, "one of " + ", ".join(PROJECTIONS))
    return PROJECTIONS[name]
