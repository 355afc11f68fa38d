"""The GPUs of this host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..arch import SM90
from ..problem import ProblemError
from ..target import Target, local_target
from .point import Point


class HostError(ProblemError):
    """This host cannot run what was asked for."""


@dataclass(frozen=True)
class Host:
    """`gpus` equal GPUs that torch calls `gpu`; `num_sms` of each are used, an even number."""

    gpu: str | None
    num_sms: int
    gpus: int

    @classmethod
    def find(cls) -> Host:
        """Raises `HostError` where the first GPU is none for the SM90 kernel."""
        target = local_target()
        if target is None or target.arch != SM90:
            raise HostError("GPUs", 0, "Hopper GPUs; without any, bench/compile_artifacts.py of the repository compiles for them")
        import torch

        return cls(target.gpu, target.num_sms // 2 * 2, torch.cuda.device_count())

    @classmethod
    def measured(cls) -> Host:
        """The one that kernels are compiled for where there is no GPU."""
        target = Target.typical(SM90)
        return cls(target.gpu, target.num_sms, 8)

    def check(self, points: Iterable[Point]) -> None:
        """Raises `HostError` for a point with more ranks than GPUs."""
        for point in points:
            if point.ranks > self.gpus:
                raise HostError("ranks", point.ranks, f"at most {self.gpus}, the GPUs of this host")
