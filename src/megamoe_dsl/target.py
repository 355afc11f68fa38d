"""What a kernel is chosen for: an architecture, a number of SMs, and the GPU whose measured configurations count."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .arch import ARCHES, GPUS, Arch, arch_of_capability
from .config_error import as_integer
from .problem import ProblemError

ARCH_VARIABLE = "MEGAMOE_ARCH"
NAME_BYTES = 256
MOST_SMS = 256
TYPICAL_GPUS = {"sm_100a": "NVIDIA B200", "sm_90a": "NVIDIA H200"}
"""The GPU of an architecture whose properties are used when none is given."""


@dataclass(frozen=True)
class Target:
    """num_sms are the SMs of the grid; `gpu` is the name that CUDA reports, or None for heuristics alone."""

    arch: Arch
    num_sms: int
    gpu: str | None = None

    @property
    def pair(self) -> int:
        """CTAs of a cluster: 2, or 1 for an odd number of SMs."""
        return 2 - self.num_sms % 2

    @classmethod
    def typical(cls, arch: Arch | str, num_sms: int | None = None) -> Target:
        """The most common GPU of an architecture, by default with all its SMs.  Raises `ProblemError` for an unknown architecture and for
        more SMs than any GPU has."""
        if num_sms is not None and as_integer(num_sms) is not None and num_sms > MOST_SMS:
            raise ProblemError("num_sms", num_sms, f"at most {MOST_SMS}, more than any GPU has")
        gpu = GPUS[TYPICAL_GPUS[find_arch(str(arch)).name]]
        return cls(gpu.arch, gpu.num_sms if num_sms is None else num_sms, gpu.name)


def find_arch(name: str, field: str = "arch") -> Arch:
    """Raises `ProblemError` with the known names; `field` is where this one comes from."""
    if name not in ARCHES:
        raise ProblemError(field, name, "one of " + ", ".join(ARCHES))
    return ARCHES[name]


def target_at_hand() -> Target | None:
    """The typical GPU of the architecture in `MEGAMOE_ARCH`, else the first local GPU, else None.  Raises `ProblemError`."""
    if asked := os.environ.get(ARCH_VARIABLE):
        return Target.typical(find_arch(asked, ARCH_VARIABLE))
    return local_target()


def local_target() -> Target | None:
    """The first GPU that the driver shows, or None when there is no driver or no GPU of a known architecture."""
    try:
        from cuda.bindings import driver

        attribute = driver.CUdevice_attribute
        names = (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        )
        if driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS:
            return None
        answers = [*(driver.cuDeviceGetAttribute(name, 0) for name in names), driver.cuDeviceGetName(NAME_BYTES, 0)]
    except (ImportError, RuntimeError):
        return None
    if any(status != driver.CUresult.CUDA_SUCCESS for status, _ in answers):
        return None
    major, minor, num_sms, name = (value for _, value in answers)
    arch = arch_of_capability((major, minor))
    return None if arch is None else Target(arch, num_sms, name.split(b"\0")[0].decode())
