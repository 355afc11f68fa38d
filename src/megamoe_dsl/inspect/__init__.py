"""What an artifact says: registers, memory maps, barriers; instructions per role and unit of work, and loads overtaken, from its SASS."""

from ..sass.listing import DisassemblyError, disassemble
from ..sass.measurer import InspectionError, Measure
from .inspection import Change, Inspection, annotate, differences

__all__ = ["Change", "DisassemblyError", "Inspection", "InspectionError", "Measure", "annotate", "differences", "disassemble"]
