"""What the fields of an entry may hold, by the types that its class declares: a table is a file that anybody may have edited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, ClassVar, NamedTuple

from ..config_error import as_integer

MOST = 1 << 31


def is_count(value: object) -> bool:
    """Whether it is an integer from 1 to 2^31."""
    number = as_integer(value)
    return number is not None and 1 <= number <= MOST


def is_choice(value: object) -> bool:
    """Whether it maps names of fields to integers from 0 to 2^31, or to true and false."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return False
    numbers = [int(one) if isinstance(one, bool) else as_integer(one) for one in value.values()]
    return all(one is not None and 0 <= one <= MOST for one in numbers)


def is_positive(value: object) -> bool:
    """Whether it is a number above zero, and finite."""
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 < value < inf


ALLOWED = {
    "int": (is_count, "an integer from 1 to 2^31"),
    "float": (is_positive, "a positive number"),
    "Mapping[str, float]": (lambda one: isinstance(one, Mapping) and all(map(is_positive, one.values())), "an object of positive numbers"),
    "str": (lambda value: isinstance(value, str), "a text"),
    "Mapping[str, int]": (is_choice, "an object of integers from 0 to 2^31"),
}
"""A check and its words, by the annotation of a field."""


def require_types(entry: Any) -> None:
    """Raises ValueError that names the first field, its value and what is allowed."""
    for one in fields(entry):
        holds, allowed = ALLOWED[str(one.type)]
        value = getattr(entry, one.name)
        if not holds(value):
            raise ValueError(f"{one.name} = {value!r}: must be {allowed}")


FP8 = "fp8xfp8"  # of entries that do not say


class Measured:
    """What entries have in common: values of the declared types, and a share, what was measured apart from tokens or rows.

    SUFFIX  of the files that hold them
    SHARE   a class whose fields are some of the entry's
    """

    SUFFIX: ClassVar[str]
    SHARE: ClassVar[type[Any]]

    def __post_init__(self) -> None:
        require_types(self)

    @property
    def share(self) -> Any:
        return self.SHARE(*(getattr(self, name) for name in self.SHARE._fields))


class Share(NamedTuple):
    """What one rank computes of a layer and with how many SMs.  The number of ranks does not matter: with equally many experts per rank a
    layer behaves alike."""

    hidden: int
    intermediate: int
    experts_per_rank: int
    num_sms: int
    recipe: str = FP8


SHARED = {"block_m", "lookahead", "num_stages"}
CHOICES = (frozenset({*SHARED, "cluster"}), frozenset({*SHARED, "store_block_m", "epilogue_warpgroups", "block_k"}))
"""The fields that a configuration is chosen by, on SM90 and on SM100."""


@dataclass(frozen=True)
class Entry(Measured):
    """The configuration that was fastest at a point, under the routing of that run: uniform, or with more traffic between the GPUs.

    tokens    on every rank, at least 1
    choice    the fields of the configuration, one of `CHOICES`; num_stages = 0 is the deepest ring that fits
    us        its median time in microseconds, launches back to back
    results   name of the file in bench/results that this comes from
    recipe    number formats, by name
    """

    SUFFIX = ""
    SHARE = Share

    hidden: int
    intermediate: int
    experts_per_rank: int
    topk: int
    num_sms: int
    num_ranks: int
    tokens: int
    choice: Mapping[str, int]
    us: float
    results: str
    recipe: str = FP8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.choice.keys() not in CHOICES:
            allowed = " or ".join(", ".join(sorted(one)) for one in CHOICES)
            raise ValueError(f"choice = {dict(self.choice)}: must have the fields {allowed}")

    @property
    def expected(self) -> float:
        """Tokens that an expert received, on average."""
        return self.tokens * self.topk / self.experts_per_rank


class EpShare(NamedTuple):
    """What a rank's part of a layer is apart from its tokens."""

    hidden: int
    intermediate: int
    experts_per_rank: int
    topk: int
    recipe: str


@dataclass(frozen=True)
class EpEntry(Measured):
    """Which fields the halves of an expert-parallel layer are faster with; measured with so many tokens of each rank.

    results   name of the file in bench/results that this comes from
    dispatch, combine   fields with which these halves are faster than with those that are chosen without a table
    """

    SUFFIX = "-ep"
    SHARE = EpShare

    hidden: int
    intermediate: int
    experts_per_rank: int
    topk: int
    tokens: int
    results: str
    recipe: str = FP8
    dispatch: Mapping[str, int] = field(default_factory=dict)
    combine: Mapping[str, int] = field(default_factory=dict)

    @property
    def expected(self) -> float:
        """Tokens of an expert, all ranks together."""
        return self.tokens * self.topk / self.experts_per_rank


class GemmShare(NamedTuple):
    """What a GEMM is apart from its rows."""

    n: int
    k: int
    kind: str
    num_groups: int
    num_sms: int
    recipe: str


@dataclass(frozen=True)
class GemmEntry(Measured):
    """The configuration of a GEMM that was fastest for so many rows, divided equally among the groups.

    choice    fields of the configuration that are not their defaults
    us        its median time in microseconds, in a CUDA graph
    results   name of the file in bench/results that this comes from
    recipe    number formats
    """

    SUFFIX = "-gemm"
    SHARE = GemmShare

    n: int
    k: int
    kind: str
    num_groups: int
    num_sms: int
    rows: int
    choice: Mapping[str, int]
    us: float
    results: str
    recipe: str = FP8

    @property
    def expected(self) -> float:
        return self.rows / self.num_groups


class LaunchShare(NamedTuple):
    """A layer all of whose experts are on one GPU, apart from its tokens."""

    hidden: int
    intermediate: int
    num_experts: int
    topk: int
    recipe: str


@dataclass(frozen=True)
class LaunchEntry(Measured):
    """How long each way to launch a layer on one GPU took, in microseconds in a CUDA graph, by name."""

    SUFFIX = "-launches"
    SHARE = LaunchShare

    hidden: int
    intermediate: int
    num_experts: int
    topk: int
    tokens: int
    us: Mapping[str, float]
    recipe: str = FP8

    @property
    def expected(self) -> float:
        return self.tokens * self.topk / self.num_experts


AnyEntry = Entry | EpEntry | GemmEntry | LaunchEntry


def key_of(entry: AnyEntry) -> tuple[Any, float]:
    """What tells entries of a table apart."""
    return entry.share, entry.expected
