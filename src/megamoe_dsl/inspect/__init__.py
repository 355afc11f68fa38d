"""What an artifact says: registers, memory maps, barriers; instructions per role and unit of work, and loads overtaken, from its SASS."""

from .difference import Change, differences
from .inspection import Inspection
from .measures import InspectionError, Measure
from .overtaken_loads import OvertakenLoad
from .peer import Peer, find_peer
from .registers import RegisterUse
from .sass import DisassemblyError, Instruction, Listing, disassemble

__all__ = [
    "Change",
    "DisassemblyError",
    "Inspection",
    "InspectionError",
    "Instruction",
    "Listing",
    "Measure",
    "OvertakenLoad",
    "Peer",
    "RegisterUse",
    "differences",
    "disassemble",
    "find_peer",
]
