"""Problems that people run.  Importing this package compiles nothing."""

from .projections import PROJECTIONS, Projection, projection
from .shapes import MEASURED, PRESETS, Preset, preset

__all__ = ["MEASURED", "PRESETS", "PROJECTIONS", "Preset", "Projection", "preset", "projection"]
