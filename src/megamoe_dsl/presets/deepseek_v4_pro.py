"""DeepSeek-V4-Pro.  Importing this module compiles its kernels, or loads them from the cache (cache.py).

They are for the architecture that `MEGAMOE_ARCH` names (sm_100a or sm_90a), else for the local GPU, else for SM100.

    from megamoe_dsl.presets import deepseek_v4_pro
    artifact = deepseek_v4_pro.artifact(num_tokens=128)
"""

from .compiled import CompiledPreset

compiled = CompiledPreset.load("pro")
problem, artifacts = compiled.problem, compiled.artifacts
config, artifact = compiled.config, compiled.artifact

__all__ = ["artifact", "artifacts", "compiled", "config", "problem"]
