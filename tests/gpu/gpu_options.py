"""Options of the checks on GPUs, those of pytest and of prepare.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from megamoe_dsl.bench.options import option
from megamoe_dsl.bench.point import Point
from megamoe_dsl.bench.point_options import PointOptions
from megamoe_dsl.bench.points import points_of

SOAK_RANKS = 8


@dataclass(frozen=True)
class GpuOptions:
    """What is checked, with what, on how many GPUs."""

    kernels: Path = option(Path(".megamoe/gpu"), "Folder that tests/gpu/prepare.py has filled.")
    gpus: int | None = option(None, "GPUs to use, a divisor of 8; by default all of this host's.")
    watchdog_s: int = option(20, "Limit of a wait in a kernel, in seconds; under compute-sanitizer 600.")
    soak_preset: str = option("flash,pro", "Shapes of the soak.")
    soak_tokens: str = option("8,512", "Tokens per rank of the soak.")
    soak_launches: int = option(1000, "Launches of the soak.")
    soak_snapshots: bool = option(False, "Say where in a launch a soak went wrong; slower.")
    soak_out: Path | None = option(None, "Folder of the soak's JSON file; by default none is written.")

    def layer_ranks(self, gpus: int) -> list[int]:
        """Sizes of the groups in which the layer is checked on so many GPUs."""
        return [ranks for ranks in (1, 2, 4, 8) if ranks <= gpus]

    def soak_points(self) -> list[Point]:
        """Raises `ProblemError`."""
        return points_of(PointOptions(preset=self.soak_preset, tokens=self.soak_tokens, ranks=str(SOAK_RANKS)))
