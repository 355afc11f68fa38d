"""A module for each preset, whose import compiles the preset's kernels or loads them from the cache (cache.py).

    from megamoe_dsl.presets import deepseek_v4_flash
    artifact = deepseek_v4_flash.artifact(num_tokens=128)

Kernels are for the architecture that `MEGAMOE_ARCH` names, else for the local GPU, else for SM100.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from .shapes import PRESETS

MODULES = {f"{__package__}.{one.module}": one.name for one in PRESETS.values()}
"""Names of presets by those of their modules."""


class CompiledModules(MetaPathFinder, Loader):
    """Finds the modules of presets and makes them."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        from .compiled import CompiledPreset

        compiled = CompiledPreset.load(MODULES[module.__name__])
        vars(module).update(compiled=compiled, problem=compiled.problem, artifacts=compiled.artifacts)
        vars(module).update(config=compiled.config, artifact=compiled.artifact)
