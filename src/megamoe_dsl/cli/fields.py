"""Problems and configurations given as text, FIELD=VALUE,FIELD=VALUE: for families of kernels whose problem is no MoE layer."""

from __future__ import annotations

import os
from dataclasses import MISSING, fields
from typing import Annotated, Any

import typer

from ..kernels.kernel import Kernel
from ..kernels.registry import KERNELS, config_type, find_kernel
from ..problem import Problem, ProblemError
from ..target import ARCH_VARIABLE, Target, find_arch
from .shape import SHAPE, TILE

OTHER = [kernel.name for kernel in KERNELS if kernel.problem is not Problem]
KINDS: dict[str, type[Any]] = {"int": int, "str": str, "bool": bool}

ProblemFields = Annotated[
    str | None,
    typer.Option("--problem", help=f"Of --kernel {' or '.join(OTHER)}: fields, as in n=4096,k=7168.", rich_help_panel=SHAPE),
]
ConfigFields = Annotated[
    str | None,
    typer.Option(
        "--config", help=f"Of --kernel {' or '.join(OTHER)}: fields to replace, as in block_n=192,cluster=2.", rich_help_panel=TILE
    ),
]


def is_layer(kernel: Kernel) -> bool:
    """Whether a family's problem is a MoE layer, which has options of its own."""
    return kernel.problem is Problem


def parse_fields(option: str, text: str | None, kind: type[Any]) -> dict[str, Any]:
    """Values of fields of a dataclass.  Raises `ProblemError` for a name or a value that is none of its fields'."""
    known = {one.name: str(one.type) for one in fields(kind) if str(one.type) in KINDS}
    found: dict[str, Any] = {}
    for part in filter(None, (text or "").split(",")):
        name, _, value = part.partition("=")
        if name not in known:
            raise ProblemError(option, part, f"FIELD=VALUE with one of {', '.join(known)}")
        found[name] = parse_value(name, value, KINDS[known[name]])
    return found


def parse_value(name: str, value: str, kind: type[Any]) -> Any:
    """One value.  Raises `ProblemError`."""
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise ProblemError(name, value, "true or false")
        return value.lower() == "true"
    if kind is int:
        try:
            return int(value)
        except ValueError:
            raise ProblemError(name, value, "an integer") from None
    return value


def config_from_fields(
    kernel: str, arch: str | None, problem_text: str | None, config_text: str | None, rows: int, sms: int | None = None
) -> Any:
    """The configuration of a family that is no MoE layer.  Raises `ProblemError` and `ConfigError`."""
    found = find_kernel(kernel)
    named = arch or os.environ.get(ARCH_VARIABLE) or next(iter(found.configs))
    architecture = find_arch(named, "arch" if arch else ARCH_VARIABLE)
    kind = config_type(found, architecture)
    given = parse_fields("--problem", problem_text, found.problem)
    needed = [one.name for one in fields(found.problem) if one.default is MISSING]
    for name in needed:
        if name not in given:
            raise ProblemError("--problem", problem_text, f"given with {', '.join(f'{one}=NUMBER' for one in needed)} of --kernel {kernel}")
    return found.choose(found.problem(**given), Target.typical(architecture, sms), rows, **parse_fields("--config", config_text, kind))


def only_for_layers(**options: object) -> None:
    """Raises `ProblemError` for the first option that is given beside a family that is no MoE layer."""
    for name, value in options.items():
        if value is not None:
            raise ProblemError(name, value, f"left out with --kernel {' or '.join(OTHER)}")
