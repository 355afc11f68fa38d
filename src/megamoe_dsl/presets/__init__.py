"""Problems that people run.  Importing this package compiles nothing."""

from .shapes import MEASURED, PRESETS, Preset, preset

__all__ = ["MEASURED", "PRESETS", "Preset", "preset"]
