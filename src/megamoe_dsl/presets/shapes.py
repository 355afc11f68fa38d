"""Published model shapes by name."""

from __future__ import annotations

from dataclasses import dataclass

from ..problem import Problem, ProblemError


@dataclass(frozen=True)
class Preset:
    """The MoE layer of one model and the number of ranks it is served on."""

    name: str
    model: str
    hidden: int
    intermediate: int
    num_experts: int
    topk: int
    num_ranks: int = 8

    @property
    def experts_per_rank(self) -> int:
        """With `num_ranks` ranks."""
        return self.num_experts // self.num_ranks

    def problem(self, max_tokens_per_rank: int, **changes: int | float | str | None) -> Problem:
        """The layer for batches of up to `max_tokens_per_rank` tokens; `changes` replace fields.  Raises `ProblemError`."""
        fields = {name: getattr(self, name) for name in ("hidden", "intermediate", "num_experts", "topk", "num_ranks")}
        return Problem(**{**fields, "max_tokens_per_rank": max_tokens_per_rank, **changes})


PRESETS = {
    "flash": Preset("flash", "DeepSeek-V4-Flash", hidden=4096, intermediate=2048, num_experts=256, topk=6),
    "pro": Preset("pro", "DeepSeek-V4-Pro", hidden=7168, intermediate=3072, num_experts=384, topk=6),
}


def preset(name: str) -> Preset:
    """The preset of this name.  Raises `ProblemError` with the known names."""
    if name not in PRESETS:
        raise ProblemError("preset", name, "one of " + ", ".join(PRESETS))
    return PRESETS[name]
