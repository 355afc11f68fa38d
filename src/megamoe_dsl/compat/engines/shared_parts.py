"""What layers of all engines share: number formats, the symmetric buffer, and kernels that are compiled at load."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import torch

from ...arch import Arch
from ...artifact.cache import require_writable
from ...artifact.store import one_process
from ...json_file import cache_folder
from ...kernels.registry import find_kernel
from ...problem import Problem, ProblemError
from ...recipe import BF16
from ...runtime import layer as layers
from ...runtime.layer import MegaMoE
from ...runtime.selection import Selection
from ...runtime.symmetric_memory import SymmetricBuffer
from ...target import Target


def recipe_of(arch: Arch, packed: bool, w4a4: bool) -> str:
    """Number formats of FP8 or packed FP4 weights.  Raises `ProblemError` for those that a GPU has no kernel for."""
    fp4 = "mxf4xmxf4" if w4a4 else "fp8xfp4" if arch.has_tensor_memory else "fp8xmxfp4"
    recipe, known = fp4 if packed else "fp8xfp8", find_kernel("mega_moe").recipes[arch.name]
    if recipe not in known:
        raise ProblemError("experts", recipe, f"one of {', '.join(known)} on {arch.name}")
    return recipe


def combine_element() -> str:
    """How results travel back: what `MEGAMOE_COMBINE` says, by default BF16.  A `Problem` checks it."""
    return os.environ.get("MEGAMOE_COMBINE", BF16)


def new_layer(problem: Problem, device: torch.device, group: Any, reserved_sms: int, watchdog_s: float) -> MegaMoE:
    """A layer whose kernels are compiled, for every number of tokens; its weights are zero."""
    target = Target(layers.device_arch(device), layers.usable_sms(device, reserved_sms), layers.gpu_name(device))
    return MegaMoE(
        problem,
        symmetric=symmetric_of(problem, group),
        bounds=prepared_bounds(problem, target),
        reserved_sms=reserved_sms,
        watchdog_ns=round(watchdog_s * 1e9),
    )


@lru_cache
def symmetric_of(problem: Problem, group: Any) -> SymmetricBuffer:
    """One buffer for all layers of a problem."""
    return SymmetricBuffer.allocate(problem, group=group)


@lru_cache
def prepared_bounds(problem: Problem, target: Target) -> list[int]:
    """Numbers of tokens at which another kernel is the fastest; all of these kernels are compiled here, in parallel, by the first process
    of a machine that comes, while the others wait."""
    folder = cache_folder()
    require_writable("cache", folder)
    with one_process(folder / "engine-kernels.lock", "the kernels of an engine's layers"):
        MegaMoE.prepare(problem, target=target)
    chosen = Selection(problem, range(1, problem.max_tokens_per_rank + 1)).configs(target)
    return [tokens for tokens, config in chosen.items() if chosen.get(tokens + 1) != config]
