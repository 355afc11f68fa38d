"""Problems that people run.  Importing this package compiles nothing."""

from .shapes import PRESETS, Preset, preset

__all__ = ["PRESETS", "Preset", "preset"]
