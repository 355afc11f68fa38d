"""SMs that kernels may use, process-wide: what DeepGEMM's functions of these names do."""

from __future__ import annotations

import torch

from ...problem import integer_between

_asked: int | None = None


def get_num_sms() -> int:
    """Those asked for, else all of the current device."""
    if _asked is not None:
        return _asked
    count: int = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return count


def set_num_sms(num_sms: int) -> None:
    """For buffers that are made from now on: a buffer keeps the grid that it is made with.  Raises `ProblemError` unless positive."""
    global _asked
    _asked = integer_between("num_sms", num_sms, 1, 1 << 16, "a positive number of SMs")
