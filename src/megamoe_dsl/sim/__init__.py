"""A functional simulator for PTX (SM90 and SM100): several ranks, clusters, asynchronous engines, and a race detector.

It runs the PTX that the compiler produced, on buffers in host memory, in a random schedule fixed by a seed, and knows nothing of
our kernels.
"""

from .assumptions import Assumptions
from .errors import Deadlock, SimError
from .geometry import Geometry
from .host.device_array import DeviceArray
from .host.run import run
from .host.visible_memory import PerRank, arrays_of
from .lane_agents import agents_needed
from .launch import Launch
from .memory import GlobalMemory
from .program import Program, load
from .report import Finding, Report
from .simulator import Simulator

__all__ = [
    "Assumptions",
    "Deadlock",
    "DeviceArray",
    "Finding",
    "Geometry",
    "GlobalMemory",
    "Launch",
    "PerRank",
    "Program",
    "Report",
    "SimError",
    "Simulator",
    "agents_needed",
    "arrays_of",
    "load",
    "run",
]
