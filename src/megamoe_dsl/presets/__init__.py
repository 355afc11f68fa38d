"""Problems that people run.  Importing this package compiles nothing, importing a module of one preset all of its kernels."""

import sys

from .compiled_modules import CompiledModules
from .shapes import MEASURED, PRESETS, PROJECTIONS, Preset, Projection, preset, projection

sys.meta_path.append(CompiledModules())

__all__ = ["MEASURED", "PRESETS", "PROJECTIONS", "Preset", "Projection", "preset", "projection"]
