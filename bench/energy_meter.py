"""What a GPU has consumed, by NVML: the driver counts millijoules since it was loaded."""

from __future__ import annotations

import ctypes

import torch

LIBRARY = "libnvidia-ml.so.1"


class EnergyMeter:
    """Of torch's current device.  Raises OSError without NVML, and where it refuses."""

    def __init__(self) -> None:
        self._nvml = ctypes.CDLL(LIBRARY)
        self._device = ctypes.c_void_p()
        uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}".encode()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByUUID", uuid, ctypes.byref(self._device))

    def joules(self) -> float:
        """So far; the counter moves every few tens of milliseconds."""
        value = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._device, ctypes.byref(value))
        return value.value / 1e3

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._nvml, name)(*arguments)
        if status:
            raise OSError(status, f"{name} of {LIBRARY} failed")
