"""What an artifact says: registers, memory maps, barriers, and instructions per role and unit of work, read from its SASS."""

from .difference import Change, differences
from .inspection import Inspection
from .measures import InspectionError, Measure
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
    "Peer",
    "RegisterUse",
    "differences",
    "disassemble",
    "find_peer",
]
