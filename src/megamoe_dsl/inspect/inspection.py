"""All that can be read from an artifact: as one value that turns into JSON, what differs between two, and PTX with names of functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..artifact.artifact import Artifact
from ..hardware.cta_pair import TmemField
from ..layouts.region import MBarrier, Placement
from ..sass.measurer import Measure
from ..sass.source import function_at
from .baseline import StaticBaseline, find_baseline
from .registers import RegisterUse, register_use


@dataclass(frozen=True)
class Inspection:
    """Everything that `megamoe inspect` shows of one artifact."""

    artifact: Artifact
    registers: list[RegisterUse]
    measures: list[Measure]
    baseline: StaticBaseline | None

    @classmethod
    def of(cls, artifact: Artifact) -> Inspection:
        """Reads an artifact compiled with line info.  Raises `DisassemblyError` and `InspectionError`."""
        budgets = artifact.kernel.registers(artifact.config)
        return cls(artifact, register_use(budgets, artifact.listing), artifact.measures, find_baseline(artifact.config))

    @property
    def smem(self) -> tuple[Placement, ...]:
        """Fields of the SMEM plan by offset."""
        region = self.artifact.kernel.smem(self.artifact.config)
        return () if region is None else tuple(sorted(region, key=lambda one: (one.offset, one.lifetimes)))

    @property
    def tmem(self) -> list[TmemField]:
        """Fields of tensor memory, where the kernel uses any."""
        plan = self.artifact.kernel.tmem(self.artifact.config)
        return [] if plan is None else plan.fields

    @property
    def barriers(self) -> tuple[MBarrier, ...]:
        return self.artifact.kernel.barriers(self.artifact.config)

    def as_dict(self) -> dict[str, Any]:
        """Plain values; lists of things are keyed by name so that two inspections can be compared."""
        artifact, config, listing, smem = self.artifact, self.artifact.config, self.artifact.listing, self.artifact.dynamic_smem
        plan, total = artifact.kernel.tmem(config), getattr(config, "register_total", None)
        tmem = {"tmem_columns": plan.used, "tmem_allocated": plan.allocated, "tmem_capacity": config.arch.tmem_columns} if plan else {}
        stages = {"stages": config.num_stages} if hasattr(config, "num_stages") else {}
        return {
            "arch": artifact.arch.name,
            "compile_seconds": round(artifact.seconds, 3),
            "problem": asdict(config.problem),
            "config": {
                **{name: value for name, value in asdict(config).items() if name not in ("problem", "num_stages")},
                "num_threads": config.num_threads,
                **stages,
            },
            "resources": {
                "registers": artifact.resources.registers,
                **({} if total is None else {"register_file": f"{total}/{config.arch.registers}"}),
                "stack_bytes": artifact.resources.stack_bytes,
                "stack_instructions": sum(listing.spills),
                "instructions": len(listing.instructions),
                "overtaken_loads": len(artifact.overtaken_loads),
                "smem_bytes": smem,
                "smem_capacity": config.arch.smem_bytes,
                **tmem,
            },
            "roles": {one.group: {"budget": one.budget, "used": one.used} for one in self.registers},
            "smem": {
                one.field.name: {"offset": one.offset, "bytes": one.field.num_bytes, "shape": list(one.field.shape)} for one in self.smem
            },
            "tmem": {one.name: {"first": one.first, "columns": one.columns} for one in self.tmem},
            "barriers": {
                one.name: {
                    "count": one.count,
                    "arrivals": one.arrivals,
                    "who": one.who,
                    "transaction": one.transaction,
                    "waits": one.waits,
                    "leader_only": one.leader_only,
                }
                for one in self.barriers
            },
            "measures": {
                one.key: {"role": one.role, "unit": one.unit, "instructions": one.instructions, "kinds": one.kinds} for one in self.measures
            },
            "baseline": None if self.baseline is None else asdict(self.baseline),
        }


_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_LOCATION = re.compile(r"^(\s*)\.loc\s+(\d+)\s+(\d+)\b.*\n", re.MULTILINE)


def annotate(ptx: str) -> str:
    """The PTX with a comment before every `.loc`, as in `// load.py:78 load_tokens`; without the function where the file is not there.

    Nothing else changes: it compiles to the same code.
    """
    files = dict(_FILE.findall(ptx))

    def named(location: re.Match[str]) -> str:
        indent, number, line = location.groups()
        path = files.get(number)
        if path is None:
            return location[0]
        function = function_at(path, int(line))
        return f"{indent}// {Path(path).name}:{line}{f' {function}' if function else ''}\n{location[0]}"

    return _LOCATION.sub(named, ptx)


NOT_COMPARED = frozenset({"compile_seconds", "baseline"})


@dataclass(frozen=True)
class Change:
    """A value that differs; None on the side that lacks it."""

    path: str
    before: Any
    after: Any


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """("measures.mma_k_block.instructions", 56.0) and so on."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from flatten(inner, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Changes between two `Inspection.as_dict()`, in the order of `after`; times and the baseline are not compared."""
    old, new = (dict(flatten({k: v for k, v in one.items() if k not in NOT_COMPARED})) for one in (before, after))
    return [Change(path, old.get(path), new.get(path)) for path in dict.fromkeys([*new, *old]) if old.get(path) != new.get(path)]
