"""What an artifact says: registers, memory maps, barriers; instructions per role and unit of work, and loads overtaken, from its SASS."""

from ..sass.listing import DisassemblyError, Instruction, Listing, disassemble
from ..sass.measurer import InspectionError, Measure
from ..sass.overtaken_loads import OvertakenLoad
from .baseline import StaticBaseline, find_baseline
from .inspection import Change, Inspection, annotate, differences
from .registers import RegisterUse

__all__ = [
    "Change",
    "DisassemblyError",
    "Inspection",
    "InspectionError",
    "Instruction",
    "Listing",
    "Measure",
    "OvertakenLoad",
    "RegisterUse",
    "StaticBaseline",
    "annotate",
    "differences",
    "disassemble",
    "find_baseline",
]
