"""Number formats and weight transforms of the MegaMoE, on torch tensors.

`formats` holds the casts with UE8M0 scales (E4M3, E2M1; all recipes of SM100), `micro_scaling` both by element, `block128` those with FP32
scales (fp8xfp8), `expansion` the step from E2M1 to E4M3 that changes no value, `weights` the reordering that turns checkpoint weights into
what the kernel's TMA and scale-factor copies expect, `placement` the same for one expert at a time. Nothing here imports cutlass or needs a
GPU.
"""

from ..lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
