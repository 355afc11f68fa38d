"""Published model shapes by name.

Numbers are those of the models' public `config.json` files: `hidden_size`, `moe_intermediate_size` (gpt-oss: `intermediate_size`), the
number of routed experts (`n_routed_experts`, `num_experts`, `num_local_experts`), `num_experts_per_tok`, and the limit of the clamped
SwiGLU where a model has one.  They are shapes: what else a model does in its layer - shared experts, gpt-oss's biases and its own gating
function - is not in them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..problem import Problem, ProblemError


@dataclass(frozen=True)
class Preset:
    """The MoE layer of one model and the number of ranks it is served on.

    source                  repository of the configuration that the numbers are from
    hidden, intermediate    channels of x and y, and between the two linears
    clamp                   activation clamp of the model, or None
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

    @property
    def experts_per_rank(self) -> int:
        return self.num_experts // self.num_ranks

    def problem(self, max_tokens_per_rank: int, **changes: int | float | str | None) -> Problem:
        """The layer for batches of up to `max_tokens_per_rank` tokens; `changes` replace fields.  Raises `ProblemError`."""
        fields = {name: getattr(self, name) for name in ("hidden", "intermediate", "num_experts", "topk", "num_ranks")}
        return Problem(**{**fields, "max_tokens_per_rank": max_tokens_per_rank, **changes})


PRESETS = {
    one.name: one
    for one in (
        Preset("flash", "DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Flash", 4096, 2048, 256, 6, clamp=10.0),
        Preset("pro", "DeepSeek-V4-Pro", "deepseek-ai/DeepSeek-V4-Pro", 7168, 3072, 384, 6, clamp=10.0),
        Preset("deepseek-v3", "DeepSeek-V3 and R1", "deepseek-ai/DeepSeek-V3", 7168, 2048, 256, 8),
        Preset("kimi-k2", "Kimi-K2", "moonshotai/Kimi-K2-Instruct", 7168, 2048, 384, 8),
        Preset("qwen3-235b-a22b", "Qwen3-235B-A22B", "Qwen/Qwen3-235B-A22B", 4096, 1536, 128, 8),
        Preset("qwen3-30b-a3b", "Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B", 2048, 768, 128, 8),
        Preset("glm-4.5", "GLM-4.5", "zai-org/GLM-4.5", 5120, 1536, 160, 8),
        Preset("glm-4.5-air", "GLM-4.5-Air", "zai-org/GLM-4.5-Air", 4096, 1408, 128, 8),
        Preset("gpt-oss-120b", "gpt-oss-120b", "openai/gpt-oss-120b", 2880, 2880, 128, 4, clamp=7.0),
        Preset("gpt-oss-20b", "gpt-oss-20b", "openai/gpt-oss-20b", 2880, 2880, 32, 4, clamp=7.0),
    )
}
MEASURED = ("flash", "pro")
"""Presets whose kernels have records and figures (docs, tests/golden, tuned)."""


def preset(name: str) -> Preset:
    """The preset of this name.  Raises `ProblemError` with the known names."""
    if name not in PRESETS:
        raise ProblemError("preset", name, "one of " + ", ".join(PRESETS))
    return PRESETS[name]
