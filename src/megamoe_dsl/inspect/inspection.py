"""All that can be read from an artifact, as one value that turns into JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..artifact.artifact import Artifact
from ..hardware.tmem import TmemField
from ..layouts.mbarrier import MBarrier
from ..layouts.region import Placement
from ..sass.measurer import Measure
from .baseline import StaticBaseline, find_baseline
from .registers import RegisterUse, register_use


@dataclass(frozen=True)
class Inspection:
    """What `megamoe inspect` shows."""

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
