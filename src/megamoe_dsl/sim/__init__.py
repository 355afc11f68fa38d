"""A functional simulator for PTX (SM90 and SM100): several ranks, clusters, asynchronous engines, and a race detector.

It runs the PTX that the compiler produced, on buffers in host memory, in a random schedule fixed by a seed, and knows nothing of
our kernels.
"""

from .clock import agents_needed
from .errors import Deadlock, SimError
from .geometry import Geometry, Launch
from .host.arrays import DeviceArray, PerRank, arrays_of
from .host.run import run
from .interfaces import Assumptions
from .memory import GlobalMemory
from .program import Program, load
from .report import Finding, Report
from .simulator import Simulator

__all__ = [
    "Assumptions", "Deadlock", "DeviceArray", "Finding", "Geometry", "GlobalMemory", "Launch", "PerRank", "Program", "Report", "SimError",
    "Simulator", "agents_needed", "arrays_of", "load", "run",
]  # fmt: skip
