"""What every entry point that needs a GPU says where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .problem import ProblemError

if TYPE_CHECKING:
    import torch

ALLOWED = "a CUDA device, and torch finds none here: without one, `megamoe simulate` and SimulatedMoE run the kernels"


def require_usable(device: torch.device | str, field: str = "device") -> torch.device:
    """The device.  Raises `ProblemError`, which names `field`, for a CUDA device that torch does not find here, and for an unknown name."""
    import torch

    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        raise ProblemError(field, device, "a device of torch, as in cuda or cuda:1") from None
    if place.type not in ("cpu", "cuda"):
        raise ProblemError(field, str(place), "cpu or a CUDA device, as in cuda or cuda:1")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ProblemError(field, str(place), ALLOWED)
    if place.type == "cuda" and place.index is not None and place.index >= torch.cuda.device_count():
        raise ProblemError(field, str(place), f"one of {torch.cuda.device_count()} CUDA devices, counted from 0")
    return place


def require_cuda(device: torch.device | str, field: str = "device") -> torch.device:
    """As `require_usable`, but raises `ProblemError` for any other device than a CUDA device, too."""
    import torch

    place = require_usable(device, field)
    if place.type != "cuda":
        raise ProblemError(field, str(place), "a CUDA device" if torch.cuda.is_available() else ALLOWED)
    return place
