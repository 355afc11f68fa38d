"""Static figures of a configuration, as they are committed: resources, registers per group, instruction kinds per role and unit."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from megamoe_dsl import Target, choose
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.store import dsl_version
from megamoe_dsl.inspect import Inspection, differences
from megamoe_dsl.kernels.moe.sm90.config import BLOCK_M, Sm90Config
from megamoe_dsl.kernels.moe.sm100.choose import TIERS
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.presets import PRESETS

FOLDER = Path(__file__).parent
MAX_TOKENS, TOKENS = 8192, 128
SOME_TILES = {"sm_100a": (16, 64, 192), "sm_90a": (16, 128)}  # of Pro; of Flash all
ONE_TILE = ("sm_100a-mxfp8xmxfp8", "sm_100a-nvfp4xnvfp4", "sm_100a-bf16xbf16")
RECIPES = {"sm_100a-mxf4xmxf4": (32, 96, 192), **dict.fromkeys(ONE_TILE, (96,))}
"""Of Flash: packed ones at both depths of a stage."""
RESULTS = {"sm_90a-e4m3-results": (32, 128), "sm_100a-e4m3-results": (96,)}  # of Flash: results of 8 bits, tokens as columns and as rows
KEPT = ("arch", "config", "resources", "roles", "measures")


@cache
def config_of(arch: str, preset: str, block_m: int) -> Sm100Config | Sm90Config:
    """A tier of a preset at its ranks and the SMs of the largest GPU; `arch` may name a recipe or the results' format too."""
    shape, combine = PRESETS[preset], "e4m3" if arch in RESULTS else "bf16"
    if arch in RECIPES:
        return choose(shape.problem(MAX_TOKENS, recipe=arch.partition("-")[2]), Target.typical("sm_100a"), TOKENS, block_m=block_m)
    if arch.startswith("sm_90a"):
        pairs = {"cluster": 2} if (preset, block_m) == ("pro", BLOCK_M[-1]) else {}
        return choose(
            shape.problem(MAX_TOKENS, recipe="fp8xfp8", combine=combine), Target.typical("sm_90a"), TOKENS, block_m=block_m, **pairs
        )
    return choose(shape.problem(MAX_TOKENS, combine=combine), Target.typical("sm_100a"), TOKENS, block_m=block_m)


CASES = [
    *[("sm_100a", "flash", tier.block_m) for tier in TIERS],
    *[("sm_90a", "flash", block_m) for block_m in BLOCK_M],
    *[(arch, "pro", block_m) for arch, tiles in SOME_TILES.items() for block_m in tiles],
    *[(arch, "flash", block_m) for kinds in (RECIPES, RESULTS) for arch, tiles in kinds.items() for block_m in tiles],
]

USUAL = {
    *[("sm_100a", "flash", 64), ("sm_90a", "flash", 16), ("sm_90a", "pro", 128)],
    *[("sm_100a-mxf4xmxf4", "flash", 96), ("sm_90a-e4m3-results", "flash", 32)],
}
"""Cases whose figures `make test` compares.  Of the others it compares the PTX, from which the assembler makes the same figures."""


def has_figures(config: Sm100Config | Sm90Config) -> bool:
    """Whether test_golden.py compiles it, and looks at what must hold of all kernels, too."""
    return any(config == config_of(*case) for case in CASES)


def path_of(arch: str, preset: str, block_m: int) -> Path:
    return FOLDER / f"{arch}-{preset}-m{block_m}.json"


def read(arch: str, preset: str, block_m: int) -> dict[str, Any]:
    """The committed figures; none for a new configuration."""
    path = path_of(arch, preset, block_m)
    return json.loads(path.read_text()) if path.exists() else {}


def measure(artifact: Artifact) -> dict[str, Any]:
    """The figures of a kernel with line info."""
    found = Inspection.of(artifact).as_dict()
    return {"dsl": dsl_version(), **json.loads(json.dumps({name: found[name] for name in KEPT}))}


def explain(committed: dict[str, Any], present: dict[str, Any]) -> str:
    """One line per figure that differs; empty when none does."""
    lines = []
    for change in differences(committed, present):
        trend = ""
        if isinstance(change.before, int | float) and isinstance(change.after, int | float):
            trend = f"  ({change.after - change.before:+g})"
        lines.append(f"{change.path:60} {change.before} -> {change.after}{trend}")
    return "\n".join(lines)
