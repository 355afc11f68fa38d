"""Options of the checks on GPUs, those of pytest and of prepare.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from megamoe_dsl.arch import Arch
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import FP8, Point, points_of
from megamoe_dsl.bench.variant import kind_of
from megamoe_dsl.options.option import option
from megamoe_dsl.options.points import PointOptions
from megamoe_dsl.problem import Problem

SOAK_RANKS = 8
SMALL = {"hidden": 512, "intermediate": 256, "experts": 4, "topk": 2}


@dataclass(frozen=True)
class CheckedLayer:
    """The layer that the module is checked with, on so many ranks: for `bound` tokens or for all of its capacity, with all SMs of a GPU or
    with some left to others; `replays` is how often a graph is replayed on each of its inputs."""

    problem: Problem
    arch: Arch
    bound: int
    sms: int
    reserved: int
    replays: int


@dataclass(frozen=True)
class GpuOptions:
    """What is checked, with what, on how many GPUs."""

    kernels: Path = option(Path(".megamoe/gpu"), "Folder that tests/gpu/prepare.py has filled.")
    gpus: int | None = option(None, "GPUs to use, a divisor of 8; by default all of this host's.")
    recipe: str = option(FP8, "Number formats of layer and soak, by name; they say for which GPUs.")
    sms: int | None = option(None, "SMs of a GPU; by default those of the one that most people have.")
    small: bool = option(False, "Few cases, of sizes that the simulator can run in a GPU's place.")
    watchdog_s: int = option(20, "Limit of a wait in a kernel, in seconds; under compute-sanitizer 600.")
    soak_preset: str = option("flash,pro", "Shapes of the soak.")
    soak_tokens: str = option("8,512", "Tokens per rank of the soak.")
    soak_pool_rows: int | None = option(None, "Rows of the soak's token pool, 0 for a ring; by default enough for any routing.")
    soak_launches: int = option(1000, "Launches of the soak.")
    unfused_launches: int = option(100, "Launches of the soak's points beside the layer in a launch per stage.")
    soak_snapshots: bool = option(False, "Say where in a launch a soak went wrong; slower.")
    soak_out: Path | None = option(None, "Folder of the soak's JSON file; by default none is written.")

    @property
    def arch(self) -> Arch:
        """Of the GPUs.  Raises `ProblemError` for unknown number formats."""
        return kind_of(self.recipe).arch

    @property
    def gpu_sms(self) -> int:
        """Of one GPU."""
        return self.sms or Host.typical(self.arch).num_sms

    def layer_ranks(self, gpus: int) -> list[int]:
        """Sizes of the groups in which the layer is checked on so many GPUs."""
        return [ranks for ranks in (1, 2, 4, 8) if ranks <= gpus]

    def layer(self, ranks: int) -> CheckedLayer:
        """On a group of this size."""
        sms = self.gpu_sms
        if self.small:
            problem = Problem(512, 256, 4 * ranks, 2, ranks, 12, recipe=self.recipe, activation_clamp=10.0)
            return CheckedLayer(problem, self.arch, 4, sms, 2, 1)
        problem = Problem(1024, 512, 8 * ranks, 4, ranks, 512, recipe=self.recipe, activation_clamp=10.0)
        return CheckedLayer(problem, self.arch, 32, sms, sms // 8 * 2, 20)

    @property
    def soak_ranks(self) -> int:
        """That share the GPUs."""
        return 2 if self.small else SOAK_RANKS

    def soak_sms(self, gpus: int) -> int:
        """Of each rank's share of so many GPUs: an even number."""
        return share_of_sms(self.gpu_sms, gpus, self.soak_ranks)

    def soak_points(self) -> list[Point]:
        """Raises `ProblemError`."""
        shape: dict[str, int | str] = {**SMALL} if self.small else {"preset": self.soak_preset}
        more = {"tokens": self.soak_tokens, "ranks": str(self.soak_ranks), "recipe": self.recipe, "pool_rows": self.soak_pool_rows}
        return points_of(PointOptions(**shape, **more))  # type: ignore[arg-type]


def share_of_sms(sms: int, gpus: int, ranks: int) -> int:
    """Of `sms` SMs on each of some GPUs a rank's share, an even number."""
    return sms * gpus // ranks // 2 * 2
