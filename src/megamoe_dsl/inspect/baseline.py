"""The CUDA baseline's static figures (baseline_static.json beside this file), for the presets and tiers they were measured on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ..hardware.operand_tile import BLOCK_K
from ..kernels.moe.sm90.config import Sm90Config
from ..kernels.moe.sm100.config import Sm100Config
from ..presets import preset

BASELINE_FILE = Path(__file__).with_name("baseline_static.json")
PER_K_BLOCK = ("mma_k_block", "token_loader_k_block", "weight_loader_k_block")
TILE_MEASURE = "token_loader_tile"  # scheduler and wait per tile, on our side


@dataclass(frozen=True)
class StaticBaseline:
    """Figures of the baseline for one tier; `measures` by the keys of `measures.Measure`, K blocks of 128 channels."""

    name: str
    source: str
    resources: dict[str, int]
    measures: dict[str, float]


def find_baseline(config: Sm100Config | Sm90Config, path: Path = BASELINE_FILE) -> StaticBaseline | None:
    """The baseline at this shape and tier; None when it was not measured there (never on SM90)."""
    if not isinstance(config, Sm100Config):
        return None
    data = json.loads(path.read_text(encoding="utf-8"))
    measured, problem = preset(data["preset"]), config.problem
    fields = ("hidden", "intermediate", "num_experts", "topk")
    same = problem.recipe == data["recipe"] and all(getattr(measured, name) == getattr(problem, name) for name in fields)
    tier = next((one for one in data["tiers"] if one["block_m"] == config.block_m), None)
    if not same or tier is None or (problem.num_ranks, config.num_sms) != (data["num_ranks"], data["num_sms"]):
        return None
    measures = {name: tier[name] * BLOCK_K / tier["block_k"] for name in PER_K_BLOCK}
    measures |= {name: tier[name] for name in ("fc1_epilogue_8_tokens", "fc2_epilogue_8_tokens")}
    measures |= {TILE_MEASURE: tier["tile"], **data["all_tiers"]}
    resources = {name: tier[name] for name in ("stages", "smem_bytes", "registers", "spill_bytes", "instructions")}
    return StaticBaseline(data["name"], data["source"], resources, measures)
