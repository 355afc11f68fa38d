"""The deadlock report."""

from __future__ import annotations

from collections.abc import Iterable

from .interfaces import ClusterLike, CtaLike, WarpLike, WorldLike
from .report import describe_line


def describe_deadlock(world: WorldLike, live: Iterable[ClusterLike]) -> str:
    """Every unfinished warp and the state of every barrier."""
    out = ["no warp can make progress"]
    for cluster in live:
        for cta in cluster.ctas:
            out += [f"  {cta}"]
            out += [f"    {_describe_warp(world, warp)}" for warp in cta.warps if not warp.done]
            out += _describe_barriers(cta)
        out.append(f"    cluster barrier: {cluster.arrived}/{cluster.expected} arrived, generation {cluster.generation}")
    return "\n".join(out)


def _describe_warp(world: WorldLike, warp: WarpLike) -> str:
    parts = []
    for fragment in warp.fragments:
        ins = warp.kernel.code[fragment.pc]
        lanes = 32 if fragment.mask is None else int(fragment.mask.sum())
        why = fragment.why() if callable(fragment.why) else fragment.why
        line = describe_line(ins.line, world.kernels.of(warp.kernel), ins.source or "")
        parts.append(f"{line}: {ins.opcode}, {lanes} lanes" + (f"; waits on {why}" if why else ""))
    return f"warp {warp.index}: {'; '.join(parts)}"


def _describe_barriers(cta: CtaLike) -> list[str]:
    out = [f"    mbarrier smem+{offset - 1024}: {bar}" for offset, bar in sorted(cta.mbarriers.items())]
    out += [f"    barrier {n}: {bar}" for n, bar in sorted(cta.barriers.items()) if bar.arrived]
    return out
