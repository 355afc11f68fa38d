"""The device that compiled host functions see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import SimError
from ..launch import Launch
from ..memory import SMEM_MAX

_SMS, _SMEM, _SMEM_OPT_IN, _MAJOR, _MINOR = 16, 8, 97, 75, 76
"""Numbers of cudaDeviceAttr."""
CAPABILITIES = {"sm_80": (8, 0), "sm_90": (9, 0), "sm_90a": (9, 0), "sm_100a": (10, 0), "sm_100f": (10, 0), "sm_103a": (10, 3)}
"""Compute capability of each architecture whose PTX the simulator may be asked to run."""


def check_arch(arch: str) -> None:
    """Raises SimError for an architecture whose PTX the simulator does not run."""
    if arch not in CAPABILITIES:
        raise SimError(f"arch = {arch!r}: must be one of {', '.join(CAPABILITIES)}")


@dataclass
class SimulatedDevice:
    """One simulated GPU of `arch` with `num_sms` SMs.  `take` gets every launch, made for `rank`; `error` is the first failed call's."""

    arch: str
    num_sms: int
    take: Callable[[Launch], None]
    rank: int = 0
    error: BaseException | None = None

    def __post_init__(self) -> None:
        check_arch(self.arch)

    def attribute(self, number: int) -> int:
        """A device attribute (cudaDeviceAttr); those that nobody has asked for yet are 0."""
        major, minor = CAPABILITIES[self.arch]
        return {_SMS: self.num_sms, _SMEM: 48 * 1024, _SMEM_OPT_IN: SMEM_MAX, _MAJOR: major, _MINOR: minor}.get(number, 0)

    def failed(self, error: BaseException) -> None:
        """An exception in a call: the first is what went wrong."""
        self.error = self.error or error

    def raise_error(self) -> None:
        """Raise what a call has failed with, if one has."""
        if (error := self.error) is not None:
            self.error = None
            raise error
