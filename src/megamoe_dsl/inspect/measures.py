"""Instructions of every role per unit of its work: K block, tile, token.

Method. Line info says which function of kernels/mega_moe or blocks an instruction comes from (device/location.py); the loops of the control flow
(flow.py) say what repeats. A measure is the smallest loop that holds all of its anchor operations and
mostly comes from its role's function, without the loops inside it that have a measure of their own. Counts are static, per warp, with every
branch taken, and divided by the units an iteration covers, as the anchors show: four MMAs and two TMA loads are one K block on SM100.
"""

from __future__ import annotations

from ..kernels.mega_moe.sm90.config import Sm90Config
from ..kernels.mega_moe.sm90.measures import measure_sm90
from ..kernels.mega_moe.sm100.config import Sm100Config
from ..kernels.mega_moe.sm100.measures import measure_sm100
from ..sass.listing import Listing
from ..sass.measurer import InspectionError, Measure, Measurer

__all__ = ["InspectionError", "Measure", "measure_all", "mega_moe_config"]


def mega_moe_config(config: object) -> Sm100Config | Sm90Config:
    """`config`, if it is one of a mega kernel.  Raises `InspectionError`."""
    if not isinstance(config, Sm100Config | Sm90Config):
        raise InspectionError(f"only the mega kernels can be inspected, not one with a {type(config).__name__}")
    return config


def measure_all(config: object, listing: Listing) -> list[Measure]:
    """Every measure of a mega kernel.  Raises `InspectionError` when one is missing, and for another kernel's configuration."""
    find = Measurer(mega_moe_config(config), listing)
    return measure_sm90(find) if isinstance(config, Sm90Config) else measure_sm100(find)
