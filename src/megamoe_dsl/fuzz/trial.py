"""What one trial of the fuzzer runs, and its text: a JSON object that repeats it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from ..artifact.store import ArtifactError, describe_config, read_config
from ..kernels.moe.config import MegaMoeConfig
from ..problem import ProblemError

ROUTINGS: Mapping[str, Mapping[str, Any]] = {
    "uniform": {},
    "zipf": {"skew": True},
    "one": {"target_expert": 0},
    "masked": {"mask": 0.5},
    "none": {"mask": 1.0},
}
"""How tokens choose experts, as arguments of `cases.random_routing`."""
EXACT, CANCELLING = "exact", "cancelling"
VALUES = (EXACT, "normal", "heavy", "subnormal", "zeros", "equal", CANCELLING)
"""Data: sums exact in any order; normal numbers; those with scales over 24 binades; subnormal codes; half of the codes 0 or -0; all tokens
of a rank the same; heavy-tailed ones of which the second half of K takes away the first, so that sums are nothing but roundings, which
another order of additions changes."""


@dataclass(frozen=True)
class FuzzedCall:
    """Tokens of every rank, routing and values as in `ROUTINGS` and `VALUES`, and the seed of both."""

    tokens: tuple[int, ...]
    routing: str = "uniform"
    values: str = EXACT
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(self.tokens))
        for name, allowed in (("routing", tuple(ROUTINGS)), ("values", VALUES)):
            if getattr(self, name) not in allowed:
                raise ProblemError(name, getattr(self, name), f"one of {', '.join(allowed)}")


@dataclass(frozen=True)
class Trial:
    """Calls of one layer, one after another on the same buffers.

    config    of the fused kernel
    other     another tile for the same problem, whose y must have the same bits; None: none
    unfused   whether the layer in a launch per stage must have the same bits, too
    schedule  seed of the simulator's schedule
    """

    config: MegaMoeConfig
    calls: tuple[FuzzedCall, ...]
    other: MegaMoeConfig | None = None
    unfused: bool = False
    schedule: int = 0

    def to_json(self) -> str:
        """One line, without fields that have their defaults."""
        named = {name: shortened(one) for name, one in (("config", self.config), ("other", self.other)) if one is not None}
        rest = {"unfused": self.unfused, "schedule": self.schedule}
        calls = [given_fields(one) for one in self.calls]
        return json.dumps({**named, "calls": calls, **{name: value for name, value in rest.items() if value}})

    @classmethod
    def from_json(cls, text: str) -> Trial:
        """Inverse of `to_json`.  Raises `ProblemError` for other text."""
        try:
            given = json.loads(text)
            configs = {name: read_config(given.pop(name)) for name in ("config", "other") if name in given}
            return cls(calls=tuple(FuzzedCall(**one) for one in given.pop("calls")), **configs, **given)  # type: ignore[arg-type]
        except (ArtifactError, AttributeError, LookupError, RecursionError, TypeError, json.JSONDecodeError) as error:
            raise ProblemError("trial", text[:80], f"a trial as the fuzzer prints it ({error})") from None


def given_fields(value: Any) -> dict[str, Any]:
    """Fields of a dataclass, as JSON values, that do not have their default."""
    values = asdict(value)
    return {one.name: values[one.name] for one in fields(value) if one.default is MISSING or getattr(value, one.name) != one.default}


def shortened(config: MegaMoeConfig) -> dict[str, Any]:
    """A configuration as `read_config` takes it."""
    kept = given_fields(config)
    described = {name: value for name, value in describe_config(config).items() if name in ("kernel", "kind") or name in kept}
    return {**described, "problem": given_fields(config.problem)}
