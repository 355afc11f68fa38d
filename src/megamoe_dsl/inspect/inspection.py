"""Everything that can be read from an artifact, as JSON; differences between two of them; PTX annotated with functions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..artifact.artifact import Artifact
from ..hardware.cta_pair import TmemField
from ..json_file import FileError, read_json
from ..layouts.region import MBarrier, Placement
from ..sass.flow import Flow
from ..sass.listing import Listing
from ..sass.measurer import InspectionError, Measure, function_at


@dataclass(frozen=True)
class RegisterUse:
    """`budget` of the group after setmaxnreg, `used` (highest register index + 1), instructions that load from and store to the stack."""

    group: str
    budget: int
    used: int
    stack_loads: int
    stack_stores: int

    @property
    def fits(self) -> bool:
        return self.used <= self.budget and not self.stack_loads and not self.stack_stores


def register_use(budgets: Mapping[str, int], listing: Listing) -> list[RegisterUse]:
    """Registers of the code reachable from each group's USETMAXREG; groups with one budget show the worst of them.  Calls are left out:
    they only call a trap, and nvdisasm lists all registers as read.  Raises `InspectionError` for a budget without USETMAXREG."""
    flow = Flow(listing)
    at: defaultdict[int, list[int]] = defaultdict(list)
    for i, one in enumerate(listing.instructions):
        if one.operation == "USETMAXREG":
            at[int(one.operands.rsplit("0x", 1)[1], 16)].append(i)
    found = []
    for group, budget in budgets.items():
        if budget not in at:
            raise InspectionError(f"no USETMAXREG of {budget} registers for {group}; there are {sorted(at)}")
        code = [listing.instructions[i] for i in frozenset().union(*(flow.reachable(start) for start in at[budget]))]
        used = 1 + max(one.highest for one in code if one.operation != "CALL")
        loads, stores = (sum(one.operation == operation for one in code) for operation in ("LDL", "STL"))
        found.append(RegisterUse(group, budget, used, loads, stores))
    return found


SECTIONS = ("problem", "config", "resources", "roles", "smem", "tmem", "barriers", "measures")
"""Objects of `Inspection.as_dict`."""

BARRIER_FIELDS = ("count", "arrivals", "who", "transaction", "waits", "leader_only")
MEASURE_FIELDS = ("role", "unit", "instructions", "kinds")


def read_inspection(path: Path) -> dict[str, Any]:
    """A file that `megamoe inspect --json` wrote.  Raises `FileError` for another one."""
    found = read_json(path)
    for name in SECTIONS:
        if not isinstance(found, dict) or not isinstance(found.get(name), dict):
            raise FileError(path, f"not a file that `megamoe inspect --json` wrote: {name} must be an object")
    return dict(found)


@dataclass(frozen=True)
class Inspection:
    """Everything that `megamoe inspect` shows of one artifact."""

    artifact: Artifact
    registers: list[RegisterUse]
    measures: list[Measure]

    @classmethod
    def of(cls, artifact: Artifact) -> Inspection:
        """Reads an artifact compiled with line info.  Raises `DisassemblyError` and `InspectionError`."""
        return cls(artifact, register_use(artifact.config.registers, artifact.listing), artifact.measures)

    @property
    def smem(self) -> tuple[Placement, ...]:
        plan = self.artifact.config.smem
        return tuple(sorted(plan.region, key=lambda one: (one.offset, one.lifetimes))) if plan else ()

    @property
    def tmem(self) -> list[TmemField]:
        plan = self.artifact.config.tmem
        return [] if plan is None else plan.fields

    @property
    def barriers(self) -> tuple[MBarrier, ...]:
        return self.artifact.config.smem.barriers if self.artifact.config.smem else ()

    def as_dict(self) -> dict[str, Any]:
        """JSON values; lists are objects by name, so that two inspections can be compared."""
        artifact, config, listing, smem = self.artifact, self.artifact.config, self.artifact.listing, self.artifact.dynamic_smem
        plan, total = config.tmem, getattr(config, "register_total", 0)
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
                **({"register_file": f"{total}/{config.arch.registers}"} if total else {}),
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
            "barriers": {one.name: {field: getattr(one, field) for field in BARRIER_FIELDS} for one in self.barriers},
            "measures": {one.key: {field: getattr(one, field) for field in MEASURE_FIELDS} for one in self.measures},
        }


_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_LOCATION = re.compile(r"^(\s*)\.loc\s+(\d+)\s+(\d+)\b.*\n", re.MULTILINE)


def annotate(ptx: str) -> str:
    """The PTX with a comment before every `.loc`, as in `// load.py:78 load_tokens`. It compiles to the same code."""
    files = dict(_FILE.findall(ptx))

    def named(location: re.Match[str]) -> str:
        indent, number, line = location.groups()
        path = files.get(number)
        if path is None:
            return location[0]
        function = function_at(path, int(line))
        return f"{indent}// {Path(path).name}:{line}{f' {function}' if function else ''}\n{location[0]}"

    return _LOCATION.sub(named, ptx)


NOT_COMPARED = frozenset({"compile_seconds"})


@dataclass(frozen=True)
class Change:
    """A value that differs; None where it is missing."""

    path: str
    before: Any
    after: Any


def flatten(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """("measures.mma_k_block.instructions", 56.0) and so on, of values in objects however deep."""
    left = list(value.items())[::-1]
    while left:
        path, one = left.pop()
        if isinstance(one, Mapping):
            left += [(f"{path}.{name}", inner) for name, inner in one.items()][::-1]
        else:
            yield path, one


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Changes between two `Inspection.as_dict()`, in the order of `after`; times are not compared."""
    old, new = (dict(flatten({k: v for k, v in one.items() if k not in NOT_COMPARED})) for one in (before, after))
    return [Change(path, old.get(path), new.get(path)) for path in dict.fromkeys([*new, *old]) if old.get(path) != new.get(path)]
