"""A simulated GPU in the place of a real one, for every Python process that is started with `environment`: torch.cuda, the CUDA driver and
the kernels that this project loads.  Nothing is timed: every time is NaN, and the GPU's name says what it is.

    env $(python -m stand_in.gpu sm_100a 4) python -m pytest -m gpu tests/gpu --small --recipe fp8xfp4

It is one GPU; ranks of one process have a stream each.  torch.compile hands on what it is given.  A replayed graph launches its kernels and
does nothing else.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "MEGAMOE_SIMULATED_GPU"
SITE = Path(__file__).parent / "site"
"""A folder whose sitecustomize.py Python finds at its start."""


def environment(arch: str, num_sms: int) -> dict[str, str]:
    """Variables of a process that shall find such a GPU."""
    root = Path(__file__).parents[1]
    path = os.pathsep.join(map(str, filter(None, [SITE, root, root.parent / "src", os.environ.get("PYTHONPATH")])))
    return {VARIABLE: f"{arch}:{num_sms}", "PYTHONPATH": path, "MEGAMOE_BENCH_BACKEND": "gloo", "TORCHDYNAMO_DISABLE": "1"}


def install(arch: str, num_sms: int) -> None:
    """Put it in place, for the rest of the process."""
    import torch

    from megamoe_dsl.artifact.artifact import Artifact
    from megamoe_dsl.runtime.cuda_kernel import CudaKernel
    from megamoe_dsl.sim.host.module import CAPABILITIES, SimulatedDevice

    from . import driver, torch_cuda, untimed
    from .kernels import Kernels
    from .launches import Launches
    from .streams import Streams, stream_classes

    launches = Launches(races=False)
    streams = Streams(launches.take_all)
    kernels = Kernels(num_sms, streams.launch)
    device = SimulatedDevice(arch, num_sms, streams.launch)
    torch_cuda.install(launches.show, CAPABILITIES[arch], num_sms, streams.look, streams.use)
    for name, value in stream_classes(streams).items():
        setattr(torch.cuda, name, value)
    torch._C._cuda_getCurrentRawStream = lambda _: streams.current  # type: ignore[attr-defined]
    torch._C._cuda_getDevice = lambda: 0  # type: ignore[attr-defined]
    driver.install(launches.show, device.attribute, {**kernels.answers(), "cuDeviceGetName": torch.cuda.get_device_name().encode()})
    load = CudaKernel.__init__

    def keep_ptx(self: CudaKernel, artifact: Artifact, early: bool = True) -> None:
        kernels.ptx[artifact.cubin] = artifact.ptx
        load(self, artifact, early)

    CudaKernel.__init__ = keep_ptx  # type: ignore[method-assign]
    untimed.install()


if __name__ == "__main__":
    print(" ".join(f"{name}={value}" for name, value in environment(sys.argv[1], int(sys.argv[2])).items()))
