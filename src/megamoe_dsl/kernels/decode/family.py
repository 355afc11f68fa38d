"""The layer of a few tokens, as the registry knows it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any, ClassVar

from ...config_error import ConfigError, require
from ...problem import Problem, ProblemError
from ...recipe import BF16
from ...target import Target
from ..kernel import Kernel
from .config import TOKENS, DecodeConfig
from .problem import DecodeArguments, DecodeProblem

MOST_WORK = 1 << 25
"""Tokens by weights of an expert's Linear2: with more the fused kernel is faster (docs/lab/one_gpu.md)."""


def most_tokens(problem: DecodeProblem) -> int:
    """The most tokens for which this launch replaces the fused one."""
    return min(TOKENS[-1], MOST_WORK // (problem.hidden * problem.intermediate))


def few_configs(
    layer: Problem, target: Target, *, fused: bool = True, bf16_inputs: bool = True, shared_experts: int = 0
) -> tuple[DecodeConfig, ...]:
    """The configurations for calls of up to 8 and up to 16 tokens; none unless the layer has 4-bit weights, no biases and one GPU, and a
    `MegaMoE` with these arguments would compute the same."""
    whole = fused and bf16_inputs and not shared_experts and layer.num_ranks == 1 and not layer.biases and layer.combine == BF16
    if not (whole and layer.formats.decodes and target.arch == DecodeConfig.arch):
        return ()
    with suppress(ConfigError, ProblemError):
        problem = DecodeProblem(**{one.name: getattr(layer, one.name) for one in fields(DecodeProblem) if one.name != "gate_up"})
        most = min(most_tokens(problem), layer.max_tokens_per_rank)
        return tuple(DecodeKernel().choose(problem, target, tokens) for tokens in TOKENS[: (most > 0) + (most > TOKENS[0])])
    return ()


class DecodeKernel(Kernel):
    """A whole layer of up to 16 tokens on one GPU."""

    name = "decode"
    problem = DecodeProblem
    configs: ClassVar[Mapping[str, type[DecodeConfig]]] = {"sm_90a": DecodeConfig}
    recipes: ClassVar[Mapping[str, tuple[str, ...]]] = {"sm_90a": ("fp8xfp8", "fp8xmxfp4", "bf16xbf16")}
    takes_arguments = DecodeArguments
    early = True
    code = "kernel.decode_kernel"

    def choose(self, problem: DecodeProblem, target: Target, num_tokens: int, **fields: Any) -> DecodeConfig:
        require(num_tokens <= TOKENS[-1], "num_tokens", num_tokens, f"at most {TOKENS[-1]}")
        return DecodeConfig(problem, **{"max_tokens": TOKENS[num_tokens > TOKENS[0]], "num_sms": target.num_sms, **fields})

    def label(self, config: DecodeConfig) -> str:
        p = config.problem
        return f"{p.hidden}x{p.intermediate}-e{p.num_experts}-k{p.topk}-{p.recipe}-{p.gate_up}-m{config.max_tokens}"
