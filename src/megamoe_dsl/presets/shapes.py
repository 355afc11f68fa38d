"""Published model shapes by name.

Numbers are those of the models' public `config.json` files.  `Preset.problem` is a shape; only `compiled.py` uses activation, clamp and
biases.  Shared experts are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..activation import SILU
from ..blocks.gemm.problem import PACKED, SCALE_BLOCK, GemmProblem
from ..layouts.arith import align
from ..problem import Problem, ProblemError
from ..recipe import E2M1, E4M3


@dataclass(frozen=True)
class Preset:
    """The MoE layer of one model and the number of ranks it is served on.

    source                  repository of the configuration that the numbers are from
    hidden, intermediate    channels of x and y, and between the two linears
    clamp                   activation clamp of the model, or None
    weights                 element of the published experts' weights; for a model in BF16 the element of its FP8 release
    activation, biases      of its layer; with biases, top-k weights are applied to results
    """

    name: str
    model: str
    source: str
    hidden: int
    intermediate: int
    num_experts: int
    topk: int
    clamp: float | None = None
    num_ranks: int = 8
    weights: str = E4M3
    activation: str = SILU
    biases: bool = False

    @property
    def module(self) -> str:
        """The name under which this package has its kernels: the repository's, as in deepseek_v4_flash."""
        return re.sub(r"\W", "_", self.source.split("/")[1].lower())

    @property
    def experts_per_rank(self) -> int:
        return self.num_experts // self.num_ranks

    def problem(self, max_tokens_per_rank: int, **changes: int | float | str | None) -> Problem:
        """The layer for batches of up to `max_tokens_per_rank` tokens; `changes` replace fields.  Raises `ProblemError`."""
        fields = {name: getattr(self, name) for name in ("hidden", "intermediate", "num_experts", "topk", "num_ranks")}
        return Problem(**{**fields, "max_tokens_per_rank": max_tokens_per_rank, **changes})


def layer_problem(name: str | None, max_tokens_per_rank: int, **given: Any) -> Problem:
    """The layer of a preset with `given` fields in place of its own, or of `given` fields alone.  Raises `ProblemError`."""
    if name is not None:
        return preset(name).problem(max_tokens_per_rank, **given)
    for field in ("hidden", "intermediate", "num_experts", "topk"):
        if field not in given:
            raise ProblemError(field, None, "given, or taken from a --preset")
    return Problem(**given, max_tokens_per_rank=max_tokens_per_rank)


GPT_OSS: dict[str, Any] = {"clamp": 7.0, "weights": E2M1, "activation": "swigluoai", "biases": True}
PRESETS = {
    one.name: one
    for one in (
        Preset("flash", "DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Flash", 4096, 2048, 256, 6, clamp=10.0, weights=E2M1),
        Preset("pro", "DeepSeek-V4-Pro", "deepseek-ai/DeepSeek-V4-Pro", 7168, 3072, 384, 6, clamp=10.0, weights=E2M1),
        Preset("deepseek-v3", "DeepSeek-V3 and R1", "deepseek-ai/DeepSeek-V3", 7168, 2048, 256, 8),
        Preset("kimi-k2", "Kimi-K2", "moonshotai/Kimi-K2-Instruct", 7168, 2048, 384, 8),
        Preset("qwen3-235b-a22b", "Qwen3-235B-A22B", "Qwen/Qwen3-235B-A22B", 4096, 1536, 128, 8),
        Preset("qwen3-30b-a3b", "Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B", 2048, 768, 128, 8),
        Preset("glm-4.5", "GLM-4.5", "zai-org/GLM-4.5", 5120, 1536, 160, 8),
        Preset("glm-4.5-air", "GLM-4.5-Air", "zai-org/GLM-4.5-Air", 4096, 1408, 128, 8),
        Preset("gpt-oss-120b", "gpt-oss-120b", "openai/gpt-oss-120b", 2880, 2880, 128, 4, **GPT_OSS),
        Preset("gpt-oss-20b", "gpt-oss-20b", "openai/gpt-oss-20b", 2880, 2880, 32, 4, **GPT_OSS),
    )
}
MEASURED = ("flash", "pro")
"""Presets whose kernels have records and figures (docs, tests/golden, tuned)."""


def preset(name: str) -> Preset:
    """The preset of this name.  Raises `ProblemError` with the known names."""
    if name not in PRESETS:
        raise ProblemError("preset", name, "one of " + ", ".join(PRESETS))
    return PRESETS[name]


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
        # Latent attention: down to the latent vectors of queries, of keys and values and of positions, all at once; up from each; out.
        Projection("deepseek-v3/qkv_a", 1536 + 512 + 64, 7168),
        Projection("deepseek-v3/q_b", 128 * (128 + 64), 1536),
        Projection("deepseek-v3/kv_b", 128 * (128 + 128), 512),
        Projection("deepseek-v3/o", 7168, 128 * 128),
        Projection("deepseek-v3/shared_gate_up", 2 * 2048, 7168),
        Projection("deepseek-v3/shared_down", 7168, 2048),
        Projection("kimi-k2/qkv_a", 1536 + 512 + 64, 7168),
        Projection("kimi-k2/q_b", 64 * (128 + 64), 1536),
        Projection("kimi-k2/kv_b", 64 * (128 + 128), 512),
        Projection("kimi-k2/o", 7168, 64 * 128),
        Projection("kimi-k2/shared_gate_up", 2 * 2048, 7168),
        Projection("kimi-k2/shared_down", 7168, 2048),
        # Heads of queries that share heads of keys and values: into all three at once, and out.
        Projection("qwen3-235b-a22b/qkv", (64 + 2 * 4) * 128, 4096),
        Projection("qwen3-235b-a22b/o", 4096, 64 * 128),
        *routed_experts(),
    )
}


def projection(name: str) -> Projection:
    """The matrix of this name.  Raises `ProblemError` with the known names."""
    if name not in PROJECTIONS:
        raise ProblemError("preset", name, "one of " + ", ".join(PROJECTIONS))
    return PROJECTIONS[name]
