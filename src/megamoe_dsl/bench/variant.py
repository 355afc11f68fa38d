"""The name of a configuration in a results file, and back; and which configurations are worth timing at a point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, fields, replace
from typing import Any, TypeVar

from ..artifact.store import ArtifactStore, dsl_version
from ..config_error import require
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.registry import arch_of_recipe, config_type, find_kernel
from ..problem import Problem
from ..target import Target

SHARED = ("problem", "num_sms", "pool_rows", "trace")  # by all variants of a point


def variant_fields(config: MegaMoeConfig) -> dict[str, Any]:
    return {name: value for name, value in asdict(config).items() if name not in SHARED}


def variant_name(config: MegaMoeConfig) -> str:
    return " ".join(f"{name}={value}" for name, value in variant_fields(config).items())


def kind_of(recipe: str) -> type[MegaMoeConfig]:
    """Class of the configurations that compute in these number formats.  Raises `ProblemError`."""
    kernel = find_kernel("mega_moe")
    return config_type(kernel, arch_of_recipe(kernel, recipe))


def read_fields(name: str, recipe: str) -> dict[str, int]:
    """The fields in the name of a configuration of this recipe.  Raises `ConfigError`."""
    known = {one.name: one for one in fields(kind_of(recipe)) if one.name not in SHARED}
    parts = dict(one.partition("=")[::2] for one in name.split())
    needed = {field for field, one in known.items() if one.default is MISSING}
    good = needed <= parts.keys() <= known.keys() and all(value.isdecimal() for value in parts.values())
    require(good, "variant", name, f"field=number for {', '.join(sorted(needed))}, or more of {', '.join(known)}")
    return {field: int(value) for field, value in parts.items()}


def read_variant(name: str, problem: Problem, num_sms: int, pool_rows: int | None = None) -> MegaMoeConfig:
    """Inverse of `variant_name`.  Raises `ConfigError`, also for names from earlier versions that are no longer valid."""
    values: dict[str, Any] = read_fields(name, problem.recipe)
    return kind_of(problem.recipe)(problem, num_sms=num_sms, pool_rows=pool_rows, **values)


TO_EITHER_SIDE = 2
T = TypeVar("T")


def kernels_to_time(store: ArtifactStore, chosen: T, there: Callable[[], Sequence[T]], variants: bool) -> list[T]:
    """The chosen configuration, compiled if missing and the DSL is installed; with `variants` all in the store, the chosen one first.
    Without the DSL, kernels in the store stand in for a missing chosen one.  Raises `ArtifactError` if there is none."""
    found = there() if variants or dsl_version() is None else ()
    if not found:
        store.get(chosen)  # type: ignore[arg-type]
    if not found or (chosen in found and not variants):
        return [chosen]
    return sorted(found, key=lambda one: one != chosen)


def candidates(problem: Problem, num_tokens: int, target: Target, **fields: Any) -> list[MegaMoeConfig]:
    """The chosen configuration, the heuristics', and the neighbors of the chosen one, all with these fields."""
    kernel = find_kernel("mega_moe")
    chosen: MegaMoeConfig = kernel.choose(problem, target, num_tokens, **fields)
    heuristic: MegaMoeConfig = kernel.choose(problem, replace(target, gpu=None), num_tokens, **fields)
    return list(dict.fromkeys([chosen, heuristic, *neighbors(chosen, num_tokens, target)]))


def neighbors(config: MegaMoeConfig, num_tokens: int, target: Target) -> list[MegaMoeConfig]:
    """Configurations with one thing changed: two tiles to either side with their own lookahead, a quarter of the lead to four times, all
    experts, a ring with one stage less, and choices that only the architecture has (`MegaMoeConfig.siblings`)."""
    kernel, problem, local = find_kernel("mega_moe"), config.problem, config.problem.experts_per_rank
    tiles = config.tiles_of(problem)
    leads = [n for n in (config.lookahead // 4, config.lookahead // 2, 2 * config.lookahead, 4 * config.lookahead) if 1 <= n < local]
    found = [
        *(kernel.choose(problem, target, num_tokens, block_m=one, pool_rows=config.pool_rows) for one in around(tiles, config.block_m)),
        *(config.replace(lookahead=lookahead) for lookahead in (*leads, local)),
        config.replace(num_stages=max(2, config.num_stages - 1)),
        *config.siblings,
    ]
    return [one for one in dict.fromkeys(found) if one != config]


def around(values: Sequence[T], middle: T) -> Sequence[T]:
    """Returns `middle` and up to two neighbors on either side of it."""
    place = values.index(middle)
    return values[max(0, place - TO_EITHER_SIDE) : place + TO_EITHER_SIDE + 1]
