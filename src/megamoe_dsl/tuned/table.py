"""The measured points of one GPU: what was measured, with how many tokens or rows, and the configuration that won there.

A GPU has `<gpu>.json` beside this file, of GEMMs `<gpu>-gemm.json`, of whole layers `<gpu>-ep.json`, one entry per line; a user has others
in a folder of their own, whose entries take the places of those.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, lru_cache
from math import inf, log
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from ..config_error import as_integer
from ..json_file import FileError, read_json_object, replacing, tables_folder

MOST = 1 << 31


def is_count(value: object, least: int = 1) -> bool:
    """Whether it is an integer from `least` to 2^31."""
    number = as_integer(value)
    return number is not None and least <= number <= MOST


def is_positive(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 < value < inf


def maps_to(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A check of JSON objects: `holds` for all values."""
    return lambda value: isinstance(value, Mapping) and all(isinstance(name, str) and holds(one) for name, one in value.items())


ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (is_count, "an integer from 1 to 2^31"),
    "float": (is_positive, "a positive number"),
    "Mapping[str, float]": (maps_to(is_positive), "an object of positive numbers"),
    "str": (lambda value: isinstance(value, str), "a text"),
    "Mapping[str, int]": (maps_to(lambda one: isinstance(one, bool) or is_count(one, 0)), "an object of integers from 0 to 2^31"),
}
"""A check and its words, by the annotation of a field."""
FP8 = "fp8xfp8"  # of entries that do not say
LAYER = ("hidden", "intermediate", "experts_per_rank")
Share = tuple[Any, ...]


@dataclass(frozen=True)
class Measured:
    """Base of a table's entries: fields have their declared types, and a share identifies what was measured, apart from tokens or rows.
    It has no number of ranks: layers with equally many experts per rank behave alike.

    SUFFIX  of the files that hold them
    SHARE   fields of the entry that are its share

    Raises ValueError that names the first wrong field, its value and what is allowed.
    """

    SUFFIX: ClassVar[str]
    SHARE: ClassVar[tuple[str, ...]]

    def __post_init__(self: Any) -> None:
        for one in fields(self):
            holds, allowed = ALLOWED[str(one.type)]
            value = getattr(self, one.name)
            if not holds(value):
                raise ValueError(f"{one.name} = {value!r}: must be {allowed}")

    @classmethod
    def share_of(cls, found: Any, **others: Any) -> Share:
        """The share of an entry or a problem; `others` are fields that it lacks."""
        return tuple(others[name] if name in others else getattr(found, name) for name in cls.SHARE)

    @property
    def expected(self: Any) -> float:
        """Average number of tokens per expert."""
        return float(self.tokens * self.topk / self.experts_per_rank)

    @property
    def key(self) -> tuple[Any, float]:
        """Identifies an entry within a table."""
        return self.share_of(self), self.expected

    @property
    def winner(self: Any) -> str:
        """The fastest configuration's fields and its time, as text."""
        values = [getattr(self, one.name) for one in fields(self)]
        chosen = [f"{name}={value}" for one in values if isinstance(one, Mapping) for name, value in one.items()]
        return " ".join([*chosen, *(f"{one:.1f} us" for one in values if isinstance(one, float))])


@dataclass(frozen=True)
class LayerEntry(Measured):
    """An entry of a MoE layer."""

    hidden: int
    intermediate: int
    experts_per_rank: int
    topk: int


SHARED = {"block_m", "lookahead", "num_stages"}
CHOICES = (frozenset({*SHARED, "cluster"}), frozenset({*SHARED, "store_block_m", "epilogue_warpgroups", "block_k"}))
"""The fields that a configuration is chosen by, on SM90 and on SM100."""


@dataclass(frozen=True)
class Entry(LayerEntry):
    """The configuration that was fastest at a point, under the routing of that run: uniform, or with more traffic between the GPUs.

    tokens    on every rank, at least 1
    choice    the fields of the configuration, one of `CHOICES`; num_stages = 0 is the deepest ring that fits
    us        its median time in microseconds, launches back to back
    results   name of the file in bench/results that this comes from
    recipe    number formats, by name
    """

    SUFFIX = ""
    SHARE = (*LAYER, "num_sms", "recipe")

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


@dataclass(frozen=True)
class EpEntry(LayerEntry):
    """Fields with which the halves of an expert-parallel layer are faster than with the heuristics' choice, at `tokens` tokens per rank;
    `results` as in `Entry`."""

    SUFFIX = "-ep"
    SHARE = (*LAYER, "topk", "recipe")

    tokens: int
    results: str
    recipe: str = FP8
    dispatch: Mapping[str, int] = field(default_factory=dict)
    combine: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class GemmEntry(Measured):
    """The fastest configuration of a GEMM for `rows` rows, divided equally among the groups.

    choice    fields of the configuration that are not their defaults
    us        its median time in microseconds, in a CUDA graph
    results, recipe  as in `Entry`
    """

    SUFFIX = "-gemm"
    SHARE = ("n", "k", "kind", "num_groups", "num_sms", "recipe")

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


@dataclass(frozen=True)
class LaunchEntry(LayerEntry):
    """How long each way to launch a layer on one GPU took, in microseconds in a CUDA graph, by name; `results` as in `Entry`."""

    SUFFIX = "-launches"
    SHARE = EpEntry.SHARE

    tokens: int
    us: Mapping[str, float]
    results: str
    recipe: str = FP8


FOLDER = Path(__file__).parent
DEFAULT_GPU = "NVIDIA H200"
REACH = 2.0  # An entry applies up to this factor more or fewer tokens.
One = TypeVar("One", bound=Measured)


class TableError(ValueError):
    """A file is not a table of this release's `megamoe tune`."""


@dataclass(frozen=True)
class Table(Generic[One]):
    """Entries of one kind for a GPU (its `torch.cuda.get_device_name()`), in the order of their keys."""

    gpu: str
    entries: tuple[One, ...] = ()
    kind: type[Any] = Entry

    @classmethod
    def read(cls, gpu: str, folder: Path = FOLDER, kind: type[Any] = Entry) -> Table[Any]:
        """The GPU's table, empty if it has no file.  Raises `TableError` for another release's file."""
        path = path_of(gpu, folder, kind)
        if not os.path.lexists(path):
            return cls(gpu, (), kind)
        try:
            return cls(gpu, tuple(kind(**one) for one in read_json_object(path)["entries"]), kind)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = error.why if isinstance(error, FileError) else error
            raise TableError(f"{path}: no table of this release, {why}; remove it, and `megamoe tune --from` makes it anew") from error

    def write(self, folder: Path = FOLDER) -> Path:
        """Replaces the GPU's file atomically; returns its path.  Raises OSError."""
        path = path_of(self.gpu, folder, self.kind)
        lines = ",\n".join(json.dumps(asdict(one)) for one in self.entries)
        with replacing(path) as partial:
            partial.write_text(f'{{"gpu": {json.dumps(self.gpu)}, "entries": [\n{lines}\n]}}\n')
        return path

    def having(self, entry: One) -> Table[One]:
        kept = {one.key: one for one in (*self.entries, entry)}
        return Table(self.gpu, tuple(kept[key] for key in sorted(kept)), self.kind)

    def at(self, share: Share, expected: float) -> One | None:
        return next((one for one in self.by_share.get(share, ()) if one.expected == expected), None)

    def near(self, share: Share, expected: float) -> list[One]:
        """Entries of a share within `REACH` of `expected` tokens per expert, the nearest (by ratio) first."""
        within = [one for one in self.by_share.get(share, ()) if expected / REACH <= one.expected <= expected * REACH]
        return sorted(within, key=lambda one: abs(log(one.expected / expected)))

    @cached_property
    def by_share(self) -> dict[Share, list[One]]:
        found: dict[Share, list[One]] = {}
        for one in self.entries:
            found.setdefault(one.share_of(one), []).append(one)
        return found


def path_of(gpu: str, folder: Path = FOLDER, kind: type[Any] = Entry) -> Path:
    """NVIDIA H200: nvidia_h200.json, of GEMMs nvidia_h200-gemm.json."""
    return folder / (re.sub(r"[^a-z0-9]+", "_", gpu.lower()) + kind.SUFFIX + ".json")


@lru_cache
def tuned_table(gpu: str, kind: type[Any] = Entry) -> Table[Any]:
    """The package's table; this user's entries replace those with equal keys."""
    table = Table.read(gpu, kind=kind)
    for entry in Table.read(gpu, tables_folder(), kind).entries:
        table = table.having(entry)
    return table
