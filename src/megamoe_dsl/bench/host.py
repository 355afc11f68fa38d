"""The GPUs of this host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..arch import SM90, Arch
from ..kernels.registry import find_kernel
from ..problem import ProblemError
from ..target import Target, local_target
from .point import Point


class HostError(ProblemError):
    """This host cannot run what was asked for."""


@dataclass(frozen=True)
class Host:
    """`gpus` equal GPUs, with torch's name `gpu`; kernels use `num_sms` of their SMs, an even number."""

    gpu: str | None
    num_sms: int
    gpus: int
    arch: Arch = SM90

    @classmethod
    def find(cls) -> Host:
        """This host.  Raises `HostError` if there is no fused kernel for its first GPU."""
        target, known = local_target(), find_kernel("mega_moe").configs
        if target is None or target.arch.name not in known:
            which = f"GPUs of {' or '.join(known)}"
            raise HostError("GPUs", 0, f"{which}; without any, bench/compile_artifacts.py of the repository compiles for them")
        return cls(target.gpu, target.num_sms // 2 * 2, torch.cuda.device_count(), target.arch)

    @classmethod
    def typical(cls, arch: Arch | str = SM90) -> Host:
        """The host to compile for where there is no GPU.  Raises `ProblemError` for an unknown name."""
        target = Target.typical(arch)
        return cls(target.gpu, target.num_sms, 8, target.arch)

    @property
    def target(self) -> Target:
        return Target(self.arch, self.num_sms, self.gpu)

    def check(self, points: Iterable[Point]) -> None:
        for point in points:
            if point.ranks > self.gpus:
                raise HostError("ranks", point.ranks, f"at most {self.gpus}, the GPUs of this host")
