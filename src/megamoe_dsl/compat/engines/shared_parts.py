"""What layers of all engines share: number formats, the symmetric buffer, kernels that are compiled at load, and an engine's own parameters
on a layer's memory.

Engines balance experts by moving slices of a layer's parameters, and load new weights into them.  So the parameters get the memory of
`MegaMoE`, with the shape and dtype that they had where its kernels' order takes as many bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ...activation import ACTIVATIONS
from ...arch import Arch
from ...artifact.cache import require_writable
from ...artifact.store import one_process
from ...json_file import cache_folder
from ...kernels.registry import find_kernel
from ...problem import Problem, ProblemError
from ...quant import ExpertWeights, decode_ue8m0, encode_ue8m0
from ...recipe import BF16
from ...runtime.device_gemm import gpu_target
from ...runtime.layer import MegaMoE
from ...runtime.preparation import Selection, grid_target
from ...runtime.symmetric_memory import SymmetricBuffer
from ...target import Target


def require_values(why: str, *given: tuple[str, object, object]) -> None:
    """Raises `ProblemError` for the first name, value and allowed value of which the value is another; `why` ends the message."""
    for name, value, allowed in given:
        if value != allowed:
            raise ProblemError(name, value, f"{allowed} {why}")


def require_constants(name: str, activation: str, *found: float | None) -> None:
    """Raises `ProblemError` unless two constants of an engine's activation are None or those of this project: the limits of a tanh on gate
    and up, or the slope of the sigmoid and the offset of up."""
    ours = ACTIVATIONS[activation]
    constants = (ours.slope, ours.up_offset) if ours.gate_limit is None else (ours.gate_limit, ours.up_limit)
    if tuple(mine if one is None else one for one, mine in zip(found, constants, strict=True)) != constants:
        raise ProblemError(f"constants of {name}", found, f"None or {constants}")


def recipe_of(arch: Arch, packed: bool, w4a4: bool) -> str:
    """Number formats of FP8 or packed FP4 weights.  Raises `ProblemError` for those that a GPU has no kernel for."""
    fp4 = "mxf4xmxf4" if w4a4 else "fp8xfp4" if arch.has_tensor_memory else "fp8xmxfp4"
    recipe, known = fp4 if packed else "fp8xfp8", find_kernel("mega_moe").recipes[arch.name]
    if recipe not in known:
        raise ProblemError("experts", recipe, f"one of {', '.join(known)} on {arch.name}")
    return recipe


def combine_element() -> str:
    """How results travel back: what `MEGAMOE_COMBINE` says, by default BF16.  A `Problem` checks it."""
    return os.environ.get("MEGAMOE_COMBINE") or BF16


def new_layer(problem: Problem, device: torch.device, group: Any, reserved_sms: int, watchdog_s: float) -> MegaMoE:
    """A layer whose kernels are compiled, for every number of tokens; its weights are zero."""
    target = grid_target(gpu_target(device), reserved_sms)
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


Parameters = Mapping[str, torch.nn.Parameter]
"""By field of `ExpertWeights`: fc1, fc1_sf, fc2, fc2_sf."""
E8M0 = torch.float8_e8m0fnu


def plain_weights(parameters: Parameters) -> ExpertWeights:
    """What the engine has loaded; scales of E2M1 weights may be float32.  Raises `ProblemError` for one that is no power of two."""
    found = {name: one.data for name, one in parameters.items()}
    for name in ("fc1", "fc2"):
        if found[name].dtype == torch.float8_e4m3fn:
            continue
        found[name], scales = found[name].view(torch.uint8), f"{name}_sf"
        if found[scales].dtype == torch.float32:
            found[scales] = exact_ue8m0(scales, found[scales])
    return ExpertWeights(**found)


def exact_ue8m0(name: str, scales: torch.Tensor) -> torch.Tensor:
    """Powers of two as the bytes that they are.  Raises `ProblemError` that names another number."""
    codes = encode_ue8m0(scales)
    wrong = scales[decode_ue8m0(codes) != scales.double()]
    if len(wrong):
        raise ProblemError(name, wrong[0].item(), "powers of two: scales of E2M1 weights are UE8M0")
    return codes


LAYERS: WeakKeyDictionary[Any, MegaMoE] = WeakKeyDictionary()
"""Layers by an engine's experts.  Not an attribute of these: a module's attributes are its submodules."""


def load(experts: Any, names: Mapping[str, str], make: Callable[[Parameters], MegaMoE]) -> None:
    """Makes the layer of an engine's experts, or loads it anew, and moves their parameters to its memory.  `names` are those of the
    parameters, by field of `ExpertWeights`."""
    parameters = {field: getattr(experts, name) for field, name in names.items()}
    if experts not in LAYERS:
        LAYERS[experts] = make(parameters)
    adopt(LAYERS[experts], parameters)


def adopt(layer: MegaMoE, parameters: Parameters) -> None:
    """Copies an engine's weights into a layer, expert by expert, and moves the parameters there.

    A second call, after a load into the same parameters, puts the weights in kernel order again, at the same addresses.
    Raises `ProblemError` and ValueError for weights that do not fit the layer.
    """
    plain, experts = plain_weights(parameters), layer.problem.experts_per_rank
    for index in range(experts):
        layer.load_expert(index, plain.expert(index))
    memory = layer.memory.weights
    for codes, scales in (("fc1", "fc1_sf"), ("fc2", "fc2_sf")):
        places = memory_of(experts, getattr(memory, codes), getattr(memory, scales), getattr(plain, codes), getattr(plain, scales))
        for name, place in zip((codes, scales), places, strict=True):
            kept = parameters[name].data.dtype
            same = kept.itemsize == place.dtype.itemsize
            parameters[name].data = place.view(kept) if same else place.view(E8M0)


def memory_of(
    experts: int, codes: torch.Tensor, scales: torch.Tensor, plain_codes: torch.Tensor, plain_scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix's weights and scales in kernel order, experts outermost.  They have dtypes and shapes of the plain ones where an expert
    takes as many bytes; otherwise they are flat: an engine can move them between ranks, but not load into them."""
    flat = [one.view(torch.uint8).view(experts, -1) if one.numel() else one.new_empty(experts, 0) for one in (codes, scales)]
    plain = plain_codes, plain_scales
    sizes = [one[0].numel() * one.element_size() for one in plain]
    if not scales.numel() and flat[0].shape[1] == sum(sizes):  # tiles that hold their scales
        flat = list(flat[0].split(sizes, dim=1))
    if [one.shape[1] for one in flat] != sizes:
        return flat[0].view(plain_codes.dtype), flat[1].view(plain_scales.dtype)
    first, second = (one.view(like.dtype).unflatten(1, like.shape[1:]) for one, like in zip(flat, plain, strict=True))
    return first, second
