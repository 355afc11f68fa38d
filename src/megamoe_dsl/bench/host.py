"""The GPUs of this host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..config_sm90 import NUM_SMS
from ..tuned import DEFAULT_GPU
from .point import Point

HOPPER = 9  # major compute capability


class HostError(RuntimeError):
    """This host cannot run what was asked for."""


@dataclass(frozen=True)
class Host:
    """`gpus` equal GPUs that torch calls `gpu`, with an even number of SMs each."""

    gpu: str
    num_sms: int
    gpus: int

    @classmethod
    def find(cls) -> Host:
        """Raises `HostError` where there is no Hopper GPU."""
        import torch

        if not torch.cuda.is_available():
            raise HostError("GPUs = 0: must be Hopper GPUs; compile here and run where they are (bench/compile_artifacts.py)")
        about = torch.cuda.get_device_properties(0)
        if about.major != HOPPER:
            raise HostError(f"GPU = {about.name!r}: must be of compute capability {HOPPER}.0, has {about.major}.{about.minor}")
        return cls(torch.cuda.get_device_name(0), about.multi_processor_count // 2 * 2, torch.cuda.device_count())

    @classmethod
    def measured(cls) -> Host:
        """The one that kernels are compiled for where there is no GPU."""
        return cls(DEFAULT_GPU, NUM_SMS, 8)

    def check(self, points: Iterable[Point]) -> None:
        """Raises `HostError` for a point with more ranks than GPUs."""
        for point in points:
            if point.ranks > self.gpus:
                raise HostError(f"ranks = {point.ranks}: must be at most {self.gpus}, the GPUs of this host")
