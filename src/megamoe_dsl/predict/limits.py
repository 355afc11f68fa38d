"""What limits a launch: how much of its time a better resource would take away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .calibration import Calibration
from .clock import Launched
from .subject import Subject

BETTER = 1.2
LEAST = 0.005
"""A gain that is worth a word."""


@dataclass(frozen=True)
class Gain:
    """`share` of the time that is saved where `resource` is a fifth better."""

    resource: str
    share: float


def constants(**factors: float) -> Callable[[Calibration], Calibration]:
    """A calibration with some of its values, or of its kernel's, multiplied."""

    def changed(calibration: Calibration) -> Calibration:
        kernel = {name: value * factors.get(name, 1.0) for name, value in calibration.kernel.items()}
        own = {name: getattr(calibration, name) * factor for name, factor in factors.items() if hasattr(calibration, name)}
        return replace(calibration, **own, kernel=kernel)

    return changed


FASTER = 1 / BETTER
RESOURCES: dict[str, Callable[[Calibration], Calibration]] = {
    "HBM": constants(hbm=BETTER),
    "L2": constants(l2_per_clock=BETTER),
    "NVLink": constants(nvlink=BETTER),
    "tensor cores": constants(efficiency=BETTER, rows=FASTER, rows_token=FASTER, columns=FASTER),
    "power": constants(power=BETTER),
    "epilogues": constants(fc1_epilogue=FASTER, fc2_epilogue=FASTER, epilogue_clocks=FASTER, tile=FASTER),
    "latency": constants(hbm_latency=FASTER, pull=FASTER),
    "start and end": constants(start=FASTER, tail=FASTER),
}


def gains(subject: Subject, calibration: Calibration, found: Launched) -> list[Gain]:
    """Gains of all resources that matter, the largest first; `found` is the launch as it is."""
    shares = []
    for resource, changed in RESOURCES.items():
        if resource == "power" and found.clock == calibration.clock:
            continue
        us = subject.predict(changed(calibration), found.clock).us
        shares.append(Gain(resource, 1 - us / found.us))
    return sorted((one for one in shares if one.share >= LEAST), key=lambda one: -one.share)
