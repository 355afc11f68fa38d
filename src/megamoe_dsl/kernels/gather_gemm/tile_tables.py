"""The tables that say which expert a number of a tile belongs to (schedule/tile_sums.py), and how many rows they count."""

from __future__ import annotations

from ...config_error import require
from ...layouts.arith import align
from ...layouts.region import U16, Field
from ...schedule.tile_sums import LANES, MOST_TILES
from ..gemm.base_config import BaseGemmConfig


def tile_tables(experts: int) -> tuple[Field, Field]:
    """Of every expert, and of every 32 experts: the row blocks up to the last of theirs."""
    whole = align(experts, LANES)
    return Field("tile_ends", (whole,), U16, 4), Field("run_ends", (whole // LANES,), U16, 4)


def check_rows(config: BaseGemmConfig, rows: int) -> None:
    """Raises `ConfigError` for so many rows of all experts that sums of their row blocks could leave 16 bits."""
    most = (MOST_TILES - config.num_experts) * config.block_m
    require(rows <= most, "m", rows, f"at most {most} with block_m = {config.block_m}, whose row blocks are counted in 16 bits")
