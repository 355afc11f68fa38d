"""Layers of published models.  Importing a model by its repository's name compiles all its kernels, or loads them from the cache:

    from megamoe_dsl.presets import deepseek_v4_flash
    artifact = deepseek_v4_flash.artifact(num_tokens=128)

Kernels are for the architecture that `MEGAMOE_ARCH` names, else for the local GPU, else for SM100.
"""

from typing import Any

from .shapes import MEASURED, PRESETS, PROJECTIONS, Preset, Projection, layer_problem, preset, projection

__all__ = ["MEASURED", "PRESETS", "PROJECTIONS", "Preset", "Projection", "layer_problem", "preset", "projection"]


def __getattr__(name: str) -> Any:
    """The `CompiledPreset` of this name.  Raises as `CompiledPreset.load`."""
    found = next((one for one in PRESETS.values() if one.module == name), None)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .compiled import CompiledPreset

    compiled = globals()[name] = CompiledPreset.load(found.name)
    return compiled
