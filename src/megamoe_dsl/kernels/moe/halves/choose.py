"""Which configuration of a half: what the architecture says, and what was faster at a measured point that is near."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ....problem import Problem
from ....target import Target
from ....tuned import EpEntry, EpShare, tuned_table
from .config import EpConfig, Half
from .gemm_part import PARTS

AnyHalf = TypeVar("AnyHalf", bound=EpConfig)


def choose(kind: type[AnyHalf], problem: Problem, target: Target, num_tokens: int, **fields: Any) -> AnyHalf:
    """The configuration for `num_tokens` tokens on every rank; `fields` replace what is chosen.  Raises `ConfigError`."""
    problem.check_num_tokens(num_tokens)
    arch = target.arch.name
    chosen = PARTS[arch].chosen(kind.linear(problem), fields.get("num_sms", target.num_sms))
    return kind(problem, arch_name=arch, **{**chosen, **tuned_fields(kind.half, problem, num_tokens, target.gpu), **fields})


def tuned_fields(half: Half, problem: Problem, num_tokens: int, gpu: str | None) -> Mapping[str, Any]:
    """Those of the measured point of this shape that is nearest, within a factor of two of the tokens; none where nobody has measured."""
    if gpu is None:
        return {}
    near: list[EpEntry] = tuned_table(gpu, EpEntry).near(share_of(problem), expected_rows(problem, num_tokens))
    return (near[0].dispatch if half == "dispatch" else near[0].combine) if near else {}


def share_of(problem: Problem) -> EpShare:
    """What a table knows of a problem, apart from its tokens."""
    return EpShare(problem.hidden, problem.intermediate, problem.experts_per_rank, problem.topk, problem.recipe)


def expected_rows(problem: Problem, num_tokens: int) -> float:
    """Rows that an expert gets on average from `num_tokens` tokens on every rank, at least one token."""
    return max(num_tokens, 1) * problem.topk / problem.experts_per_rank
