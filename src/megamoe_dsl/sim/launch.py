"""What is to run: a kernel launch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .errors import SimError
from .geometry import StreamedGeometry
from .memory import SMEM_MAX
from .program import Program


@dataclass(frozen=True)
class Launch(StreamedGeometry):
    """One kernel launch. `args` follow the PTX parameter order: int for a scalar, bytes for an aggregate.

    Launches of one rank form a stream: each begins when the one before it has ended, one that is `early` (programmatic dependent launch)
    when every CTA of the one before it has let it or ended. Ranks do not wait for each other. `program` is the kernel (see `load`); None
    takes the one that the simulator was made with.
    """

    args: tuple[int | bytes, ...] = ()
    program: Program | None = None

    def checked(self) -> Program:
        """The program, which must fit this launch.

        Raises SimError without a program, and for shared memory, a cluster or a block that it or the machine does not allow.
        """
        if self.program is None:
            raise SimError("a launch names no program, and the simulator was made without PTX")
        kernel, cluster = self.program.kernel, self.cluster
        if (shared := kernel.static_smem + self.dynamic_smem) > SMEM_MAX:
            raise SimError(f"{kernel.name}: {shared} bytes of shared memory; {SMEM_MAX} are available")
        if any(g % c for g, c in zip(self.grid, cluster, strict=True)):
            raise SimError(f"{kernel.name}: grid {self.grid} is not a multiple of the cluster {cluster}")
        if kernel.required_threads and prod(kernel.required_threads) != self.threads:
            raise SimError(f"{kernel.name}: block {self.block} differs from .reqntid {kernel.required_threads}")
        return self.program
