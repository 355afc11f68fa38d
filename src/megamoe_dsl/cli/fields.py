"""Problems and configurations given as text, FIELD=VALUE,FIELD=VALUE: for families of kernels whose problem is no MoE layer."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from ..arch import Arch
from ..integer import parse_integer
from ..kernels.kernel import Kernel
from ..kernels.registry import config_type
from ..problem import Problem, ProblemError
from ..target import Target

OPTIONS = ("num_sms",)
"""Fields that options of their own give."""
KINDS: dict[str, type[Any]] = {"int": int, "str": str, "bool": bool}


def is_layer(kernel: Kernel) -> bool:
    """Whether a family's problem is a MoE layer, which has options of its own."""
    return kernel.problem is Problem


def parse_fields(option: str, text: str | None, kind: type[Any]) -> dict[str, Any]:
    """Values of fields of a dataclass.  Raises `ProblemError` for a name or a value that is none of its fields'."""
    known = {one.name: str(one.type) for one in fields(kind) if str(one.type) in KINDS and one.name not in OPTIONS}
    found: dict[str, Any] = {}
    for part in filter(None, (text or "").split(",")):
        name, _, value = part.partition("=")
        if name not in known:
            raise ProblemError(option, part, f"FIELD=VALUE with one of {', '.join(known)}")
        if name in found:
            raise ProblemError(option, text, f"given with {name} once")
        found[name] = parse_value(name, value, KINDS[known[name]])
    return found


def parse_value(name: str, value: str, kind: type[Any]) -> Any:
    """Reads one value of type `kind`.  Raises `ProblemError`, which names the field."""
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise ProblemError(name, value, "true or false")
        return value.lower() == "true"
    if kind is int:
        if (number := parse_integer(value)) is None:
            raise ProblemError(name, value, "an integer")
        return number
    return value


def config_from_fields(
    kernel: Kernel, arch: Arch, base: dict[str, Any], problem_text: str | None, config_text: str | None, rows: int, sms: int | None
) -> Any:
    """The configuration of a family that is no MoE layer; `base` are fields of its problem that the text may replace.  Raises
    `ProblemError` and `ConfigError`."""
    kind = config_type(kernel, arch)
    given = {**base, **parse_fields("--fields", problem_text, kernel.problem)}
    needed = [one.name for one in fields(kernel.problem) if one.default is MISSING]
    if any(name not in given for name in needed):
        allowed = f"given with {', '.join(f'{one}=NUMBER' for one in needed)} of --kernel {kernel.name}"
        raise ProblemError("--fields", problem_text, allowed)
    return kernel.choose(kernel.problem(**given), Target.typical(arch, sms), rows, **parse_fields("--choices", config_text, kind))
