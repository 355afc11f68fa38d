"""An engine's own parameters on a layer's memory: what the engine moves or loads is what the kernel reads.

Engines balance experts by moving slices of a layer's parameters, and load new weights into them.  So the parameters get the memory of
`MegaMoE`, with the shape and dtype that they had where its kernels' order takes as many bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...problem import ProblemError
from ...quant import ExpertWeights, decode_ue8m0, encode_ue8m0
from ...runtime.layer import MegaMoE

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
    """Of a matrix's weights and scales in kernel order, as tensors with experts outermost: with dtypes and shapes of the plain ones where
    the bytes of an expert are as many; otherwise flat, so that they can be moved and not be loaded into."""
    flat = [one.view(torch.uint8).view(experts, -1) if one.numel() else one.new_empty(experts, 0) for one in (codes, scales)]
    plain = plain_codes, plain_scales
    sizes = [one[0].numel() * one.element_size() for one in plain]
    if not scales.numel() and flat[0].shape[1] == sum(sizes):  # tiles that hold their scales
        flat = list(flat[0].split(sizes, dim=1))
    if [one.shape[1] for one in flat] != sizes:
        return flat[0].view(plain_codes.dtype), flat[1].view(plain_scales.dtype)
    first, second = (one.view(like.dtype).unflatten(1, like.shape[1:]) for one, like in zip(flat, plain, strict=True))
    return first, second
