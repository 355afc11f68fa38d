"""What the simulator says of the rings of copied_ring.py, and launches of them for compute-sanitizer.

python studies/copied_ring_run.py prepare FOLDER      where the DSL is: compiles them, and runs them in the simulator
compute-sanitizer --tool racecheck python studies/copied_ring_run.py run FOLDER [NUMBER ...]      on a Hopper GPU
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from copied_ring import CASES, LANES, TURNS, CopiedRingConfig, CopiedRingKernel
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.kernels import registry
from megamoe_dsl.sim import GlobalMemory, Launch, Report, Simulator

DEFINED = TURNS * LANES


def words(device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, room for y, and what y is to be."""
    x = torch.arange(1, DEFINED + 1, dtype=torch.int32).view(TURNS, LANES)
    return x.to(device), torch.zeros_like(x, device=device), x.view(TURNS, -1, 2).flip(2).view(TURNS, LANES).to(device)


def arguments(artifact: Artifact, x: torch.Tensor, y: torch.Tensor) -> tuple[int | bytes, ...]:
    return artifact.kernel.arguments(artifact.config).pack(x=x.data_ptr(), y=y.data_ptr(), turns=TURNS)


def simulate(artifact: Artifact) -> tuple[bool, Report]:
    """Whether y is right, and what the simulator saw."""
    x, y, expected = words()
    memory = GlobalMemory()
    memory.add(x, name="x", rank=0, read_only=True)
    memory.add(y, name="y", rank=0, initialised=False)
    smem = artifact.dynamic_smem
    one = Launch((1, 1, 1), (artifact.config.num_threads, 1, 1), dynamic_smem=smem, args=arguments(artifact, x, y))
    report = Simulator(artifact.ptx, memory).run([one])
    return torch.equal(y, expected), report


def run_on_gpu(artifact: Artifact) -> bool:
    """Whether y is right after one launch."""
    from megamoe_dsl.runtime.cuda_kernel import CudaKernel

    x, y, expected = words("cuda")
    CudaKernel(artifact)(arguments(artifact, x, y))
    torch.cuda.synchronize()
    return torch.equal(y, expected)


def main() -> None:
    what, folder, *numbers = sys.argv[1:]
    registry.KERNELS.append(CopiedRingKernel())
    store = ArtifactStore(Path(folder))
    for number in map(int, numbers or range(len(CASES))):
        artifact = store.get(CopiedRingConfig(CASES[number]))
        if what == "prepare":
            right, report = simulate(artifact)
            print(f"{number} {artifact.config.problem.name}: y {right}, {len(report.findings)} findings")
        else:
            print(f"{number} {artifact.config.problem.name}", flush=True)
            print(f"{number} y {run_on_gpu(artifact)}", flush=True)


if __name__ == "__main__":
    main()
