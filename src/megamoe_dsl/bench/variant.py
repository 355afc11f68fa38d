"""The name of a configuration in a results file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any

from ..config_error import require
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.registry import arch_of_recipe, config_type, find_kernel
from ..problem import Problem

SHARED = ("problem", "num_sms", "trace")  # by all variants of a point


def variant_fields(config: MegaMoeConfig) -> dict[str, Any]:
    return {name: value for name, value in asdict(config).items() if name not in SHARED}


def variant_name(config: MegaMoeConfig) -> str:
    return variant_text(variant_fields(config))


def variant_text(values: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def kind_of(recipe: str) -> type[MegaMoeConfig]:
    """Class of the configurations that compute in these number formats.  Raises `ProblemError`."""
    kernel = find_kernel("mega_moe")
    return config_type(kernel, arch_of_recipe(kernel, recipe))


def read_fields(name: str, recipe: str) -> dict[str, int]:
    """The fields that the name of a configuration of these number formats tells.  Raises `ConfigError`."""
    known = {one.name: one for one in fields(kind_of(recipe)) if one.name not in SHARED}
    parts = dict(one.partition("=")[::2] for one in name.split())
    needed = {field for field, one in known.items() if one.default is MISSING}
    good = needed <= parts.keys() <= known.keys() and all(value.isdecimal() for value in parts.values())
    require(good, "variant", name, f"field=number for {', '.join(sorted(needed))}, or more of {', '.join(known)}")
    return {field: int(value) for field, value in parts.items()}


def read_variant(name: str, problem: Problem, num_sms: int) -> MegaMoeConfig:
    """Inverse of `variant_name`.  Raises `ConfigError`, also for what was a configuration of earlier sources only."""
    values: dict[str, Any] = read_fields(name, problem.recipe)
    return kind_of(problem.recipe)(problem, num_sms=num_sms, **values)
