"""What an artifact says: registers, memory maps, barriers; instructions per role and unit of work, and loads overtaken, from its SASS."""

from ..sass.listing import DisassemblyError, Instruction, Listing, disassemble
from ..sass.measurer import InspectionError, Measure
from ..sass.overtaken_loads import OvertakenLoad
from .annotated_ptx import annotate
from .baseline import Baseline, find_baseline
from .difference import Change, differences
from .inspection import Inspection
from .registers import RegisterUse

__all__ = [
    "Baseline",
    "Change",
    "DisassemblyError",
    "Inspection",
    "InspectionError",
    "Instruction",
    "Listing",
    "Measure",
    "OvertakenLoad",
    "RegisterUse",
    "annotate",
    "differences",
    "disassemble",
    "find_baseline",
]
