"""All that can be read from an artifact, as one value that turns into JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from ..artifact.artifact import Artifact
from ..hardware.tmem import TMEM_COLUMNS
from ..kernels.mega_moe.config import REGISTER_FILE
from ..kernels.mega_moe.sm90.config import Sm90Config
from ..kernels.mega_moe.sm100.config import SMEM_CAPACITY, Sm100Config
from ..layouts.mbarrier import MBarrier
from ..layouts.region import Placement
from .baseline import Baseline, find_baseline
from .measures import Measure, mega_moe_config
from .registers import RegisterUse, register_use


@dataclass(frozen=True)
class TmemField:
    """Columns [first, first + columns) of TMEM."""

    name: str
    first: int
    columns: int


@dataclass(frozen=True)
class Inspection:
    """What `megamoe inspect` shows."""

    artifact: Artifact
    registers: list[RegisterUse]
    measures: list[Measure]
    baseline: Baseline | None

    @classmethod
    def of(cls, artifact: Artifact) -> Inspection:
        """Reads an artifact compiled with line info.  Raises `DisassemblyError` and `InspectionError`."""
        config = mega_moe_config(artifact.config)
        return cls(artifact, register_use(config, artifact.listing), artifact.measures, find_baseline(config))

    @property
    def config(self) -> Sm100Config | Sm90Config:
        """The kernel's configuration."""
        return mega_moe_config(self.artifact.config)

    @property
    def smem(self) -> tuple[Placement, ...]:
        """Fields of the SMEM plan by offset."""
        return tuple(sorted(self.config.smem.region, key=lambda one: (one.offset, one.lifetimes)))

    @property
    def tmem(self) -> list[TmemField]:
        """Fields of tensor memory; SM90 has none."""
        if not isinstance(self.config, Sm100Config):
            return []
        plan = self.config.tmem
        fields = [TmemField(f"accumulator {i}", plan.accumulator(i), plan.block_m) for i in range(plan.sfa // plan.block_m)]
        return [*fields, TmemField("token scales", plan.sfa, plan.sfa_columns), TmemField("weight scales", plan.sfb, plan.used - plan.sfb)]

    @property
    def barriers(self) -> tuple[MBarrier, ...]:
        """mbarriers of a CTA."""
        return self.config.smem.barriers

    def as_dict(self) -> dict[str, Any]:
        """Plain values; lists of things are keyed by name so that two inspections can be compared."""
        artifact, config, listing = self.artifact, self.config, self.artifact.listing
        tmem = {}
        if isinstance(config, Sm100Config):
            tmem = {"tmem_columns": config.tmem.used, "tmem_allocated": config.tmem.allocated, "tmem_capacity": TMEM_COLUMNS}
        return {
            "arch": artifact.arch,
            "compile_seconds": round(artifact.seconds, 3),
            "problem": asdict(config.problem),
            "config": {
                **{one.name: getattr(config, one.name) for one in fields(config) if one.name not in ("problem", "num_stages")},
                "num_threads": config.num_threads,
                "stages": config.num_stages,
            },
            "resources": {
                "registers": artifact.resources.registers,
                "register_file": f"{config.register_total}/{REGISTER_FILE}",
                "stack_bytes": artifact.resources.stack_bytes,
                "stack_instructions": sum(listing.spills),
                "instructions": len(listing.instructions),
                "overtaken_loads": len(artifact.overtaken_loads),
                "smem_bytes": config.smem.num_bytes,
                "smem_capacity": SMEM_CAPACITY,
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
