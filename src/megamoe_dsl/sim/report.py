"""What a run tells: findings, statistics and the deadlock report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cta import Cta
    from .machine import World
    from .warp import Warp


@dataclass
class Finding:
    """Two accesses that nothing orders, or a missing proxy fence or scope. Lines are PTX lines; sources come from `.loc`."""

    kind: str
    first: str
    second: str
    where: str
    first_line: int
    second_line: int
    first_source: str = ""
    second_source: str = ""
    count: int = 1

    def __str__(self) -> str:
        first = f"{self.first} (PTX line {self.first_line}{_at(self.first_source)})"
        second = f"{self.second} (PTX line {self.second_line}{_at(self.second_source)})"
        return f"{self.kind} at {self.where}: {first} then {second}, {self.count} times"


def _at(source: str) -> str:
    return f", {source}" if source else ""


@dataclass
class Report:
    """Result of one run. `instructions` counts warp-instructions."""

    instructions: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    warnings: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Warp-instructions per second."""
        return self.instructions / self.seconds if self.seconds else 0.0


def describe_deadlock(world: World) -> str:
    """Every unfinished warp and the state of every barrier."""
    out = ["no warp can make progress"]
    for cluster in world.live:
        for cta in cluster.ctas:
            out += [f"  {cta}"]
            out += [f"    {_describe_warp(world, warp)}" for warp in cta.warps if not warp.done]
            out += _describe_barriers(cta)
        out.append(f"    cluster barrier: {cluster.arrived}/{cluster.expected} arrived, generation {cluster.generation}")
    return "\n".join(out)


def _describe_warp(world: World, warp: Warp) -> str:
    parts = []
    for fragment in warp.fragments:
        ins = world.program.kernel.code[fragment.pc]
        lanes = 32 if fragment.mask is None else int(fragment.mask.sum())
        why = fragment.why() if callable(fragment.why) else fragment.why
        parts.append(f"PTX line {ins.line}{_at(ins.source or '')}: {ins.opcode}, {lanes} lanes" + (f"; waits on {why}" if why else ""))
    return f"warp {warp.index}: {'; '.join(parts)}"


def _describe_barriers(cta: Cta) -> list[str]:
    out = [f"    mbarrier smem+{offset - 1024}: {bar}" for offset, bar in sorted(cta.mbarriers.items())]
    out += [f"    barrier {n}: {bar}" for n, bar in sorted(cta.barriers.items()) if bar.arrived]
    return out
