"""A ring that one warp fills and another reads: the waits of the GEMM that gathers its rows (blocks/gemm/gather) and nothing else.

What compute-sanitizer's racecheck says of a ring that is certainly right, and of the same with a wait that comes too late, says what it
follows (copied_ring_run.py, docs/studies.md).  A lane reads what its neighbour has written: every order has to come from the mbarriers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from megamoe_dsl.arch import SM90, Arch
from megamoe_dsl.kernels.kernel import Kernel
from megamoe_dsl.layouts.region import U32, U64, Field, Region
from megamoe_dsl.target import Target

if TYPE_CHECKING:
    from cutlass import Int32, Int64

LANES, DEPTH, TURNS = 32, 2, 8
COPIED, COPIED_AND_WAITED, STORED = "copied", "copied_and_waited", "stored"
FILLS = (COPIED, COPIED_AND_WAITED, STORED)
FULL, EMPTY = "full", "empty"


@dataclass(frozen=True)
class CopiedRing:
    """`TURNS` times 32 words go through a ring of `DEPTH` stages of 32.

    fill      how a stage is filled: copied             cp.async, and cp.async.mbarrier.arrive.noinc by every lane
                                     copied_and_waited  cp.async, cp.async.wait_all, and a plain arrival by every lane
                                     stored             loaded and stored, and a plain arrival by every lane
    one_lane  the mbarrier where one lane arrives for its warp, after a warp barrier: full, as whoever publishes a table does; empty, as
              `release_stage` does; "": none, every lane arrives, as those who read tiles do
    late      the wait that comes after what it is for: full, after the stage is read; empty, after it is written; "": the ring is right
    """

    fill: str
    one_lane: str = ""
    late: str = ""

    @property
    def name(self) -> str:
        """In records."""
        alone = f", one lane arrives at {self.one_lane}" if self.one_lane else ""
        return f"{self.fill}{alone}" + (f", late wait for {self.late}" if self.late else "")


@dataclass(frozen=True)
class CopiedRingArguments:
    """x, y: u32 [TURNS, 32]."""

    x: Int64
    y: Int64
    turns: Int32


@dataclass(frozen=True)
class CopiedRingConfig:
    """One CTA of two warps."""

    arch: ClassVar[Arch] = SM90
    cluster: ClassVar[int] = 1
    num_threads: ClassVar[int] = 2 * LANES
    num_sms: ClassVar[int] = 1

    problem: CopiedRing

    @cached_property
    def region(self) -> Region:
        """Shared memory; the names are those that `device.stage` asks for."""
        barriers = Field("full_barrier", (DEPTH,), U64), Field("empty_barrier", (DEPTH,), U64)
        return Region.stack("smem", Field("sfa", (DEPTH, LANES), U32, 128), *barriers)


class CopiedRingKernel(Kernel):
    """For the registry while the study runs."""

    name = "copied_ring"
    problem = CopiedRing
    configs: ClassVar[Mapping[str, type[Any]]] = {SM90.name: CopiedRingConfig}

    def choose(self, problem: CopiedRing, target: Target, num_tokens: int, **fields: Any) -> CopiedRingConfig:
        """The only one."""
        return CopiedRingConfig(problem)

    def launcher(self, config: CopiedRingConfig) -> Callable[..., Any]:
        """Imports the DSL."""
        from copied_ring_kernel import launch_ring

        return launch_ring

    def arguments_type(self, config: CopiedRingConfig) -> type[CopiedRingArguments]:
        """The same for all."""
        return CopiedRingArguments

    def smem(self, config: CopiedRingConfig) -> Region:
        """Of the CTA."""
        return config.region


CASES = (
    *(CopiedRing(fill, one_lane) for fill in FILLS for one_lane in ("", EMPTY)),
    CopiedRing(STORED, FULL),
    *(CopiedRing(fill, late=late) for fill in FILLS for late in (FULL, EMPTY)),
)
