"""What an artifact says: registers, memory maps, barriers; instructions per role and unit of work, and loads overtaken, from its SASS."""

from ..sass.listing import DisassemblyError, Instruction, Listing, disassemble
from ..sass.overtaken_loads import OvertakenLoad
from .baseline import Peer, find_peer
from .difference import Change, differences
from .inspection import Inspection
from .measures import InspectionError, Measure
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
    "Peer",
    "RegisterUse",
    "differences",
    "disassemble",
    "find_peer",
]
