"""Times the fused layer on the GPUs of this host as `megamoe bench` does, and beside the baseline, or soaked; torch is enough.

python bench/mega_moe.py --preset flash,pro --tokens 8,64,512 --ranks 8 --artifacts FOLDER --baseline SITE --variants
python bench/mega_moe.py --preset flash --tokens 64 --ranks 8 --artifacts FOLDER --soak 1000
python bench/mega_moe.py --preset flash --tokens 64 --ranks 8 --artifacts FOLDER --check unfused
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines import find_baseline
from baselines.layer import Beside, LayerBeside, baseline_option
from megamoe_dsl.artifact.store import ArtifactStore, dsl_version
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import CurrentLayer, Layer, Point, measure_point, points_of
from megamoe_dsl.bench.results import POINT, Recorded, Results, passed, timed_row
from megamoe_dsl.bench.session import Session
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.moe.unfused.family import stage_configs
from megamoe_dsl.options.option import option
from megamoe_dsl.options.points import BenchOptions
from megamoe_dsl.problem import Problem, ProblemError
from script_options import add_options, naming_options, read_options
from soak import soak_point, soak_row
from unfused import UNFUSED, compare_point

BASELINE_TOLERANCE = 0.1  # relative difference; the baseline's scales between the linears are amax / 448, not powers of two


@dataclass(frozen=True)
class MegaMoeOptions(BenchOptions):
    """Those of `megamoe bench`, and what this script can do beside it."""

    baseline: str | None = baseline_option()
    soak: int = option(0, "Compare so many consecutive launches instead of timing.")
    check: str | None = option(None, "unfused: compare every element of y with the layer in one launch per stage, to the bit.")

    def __post_init__(self) -> None:
        """Raises `ProblemError`."""
        if self.soak < 0:
            raise ProblemError("soak", self.soak, "0 or a number of launches")
        if self.soak and self.remote is not None:
            raise ProblemError("remote", self.remote, "None with a soak, which has routings of its own")
        if self.check not in (None, UNFUSED):
            raise ProblemError("check", self.check, f"{UNFUSED}, or left out")
        if self.check is not None and self.trace:
            raise ProblemError("check", self.check, "left out with a trace")
        if self.soak and self.trace:
            raise ProblemError("trace", self.trace, "False with a soak")
        if self.baseline is not None:
            find_baseline(Path(self.baseline))


@dataclass(frozen=True)
class ScriptSession(Session):
    """Points that are timed beside a baseline, soaked, or traced; fields as of `MegaMoeOptions`.

    unfused  compare with the layer in one launch per stage
    """

    baseline: str | None = None
    soak: int = 0
    unfused: bool = False

    @classmethod
    def given(cls, options: MegaMoeOptions) -> ScriptSession:
        """The session that the options describe.  Raises `ProblemError`."""
        named = ("artifacts", "out", "variants", "trace", "watchdog_ms", "baseline", "soak")
        own = {name: getattr(options, name) for name in named}
        return cls(points_of(options, options.remote), graphs=not options.no_graphs, unfused=options.check is not None, **own)

    def layer(self, problem: Problem) -> Layer:
        return super().layer(problem) if self.soak or self.trace else LayerBeside(problem, site=self.baseline)

    def recorded(self, kind: str) -> Recorded:
        if self.soak:
            return Recorded(self.out, f"{kind}-soak")
        return super().recorded(kind) if self.trace else Recorded(self.out, f"{kind}-time", self.baseline)

    def kernels(self, store: ArtifactStore, point: Point, host: Host) -> list[MegaMoeConfig]:
        """Those of a session; with `unfused` the store then has the kernels of their stages too."""
        found = super().kernels(store, point, host)
        for stage in (one for config in found for one in stage_configs(config)) if self.unfused and dsl_version() is not None else ():
            store.get(stage)
        return found

    def measure(self, job: Any, layers: CurrentLayer, store: ArtifactStore, host: Host) -> dict[str, Any]:
        """The record of a point and its kernels: a soak, or a check and times beside the baseline."""
        if self.trace:
            return super().measure(job, layers, store, host)
        (point, configs), layer = job, layers.of(job[0])
        if self.soak:
            return soak_point(self, point, layer, store, configs, launches=self.soak, unfused=self.unfused)
        return time_beside(self, point, layer, store, configs, check=self.unfused)

    def row(self, record: dict[str, Any]) -> str:
        return soak_row(record) if self.soak else super().row(record) if self.trace else beside_row(record)


def time_beside(
    session: Session, point: Point, layer: LayerBeside, store: ArtifactStore, configs: list[MegaMoeConfig], *, check: bool
) -> dict[str, Any]:
    """Checks and times all kernels and the baseline; with `check` compares them with the unfused layer first."""
    agreements = compare_point(session, point, layer, store, configs) if check else {}
    beside = None if layer.baseline is None else Beside(point, layer.baseline)
    record = measure_point(point, layer, store, configs, session.watchdog_ns, session.graphs, None if beside is None else beside.launches)
    if beside is not None:
        beside.enter(record)
    for name, agreement in agreements.items():
        record["variants"][name]["unfused"] = agreement.record()
    return record if layer.baseline_error is None else record | {"baseline_error": layer.baseline_error}


def beside_row(record: dict[str, Any]) -> str:
    """A record as text, and the baseline's times, or why there is none."""
    error, theirs, best, lines = record.get("baseline_error"), record.get("baseline"), record["best"], [timed_row(record)]
    if error is not None:
        lines.append(f"{'':{POINT}s} no baseline: {error}")
    if theirs:
        graph = f"; as a graph {theirs['graph_us']['median']:.1f} us, {best['graph_ratio']:.3f}" if best.get("graph_ratio") else ""
        mib = theirs["symmetric_bytes"] / 2**20
        lines.append(f"{'':{POINT}s} baseline: {theirs['us']['median']:.1f} us, {best['ratio']:.3f} times ours{graph}; {mib:.0f} MiB")
    return "\n".join(lines)


def right(record: dict[str, Any]) -> bool:
    """Whether a record has no error, no wrong variant, no mismatch, and a baseline that agrees if one was asked for."""
    soak, variants = record.get("soak", {}), record.get("variants", {}).values()
    mismatches = any(soak.get(name, 0) for name in ("mismatches", "wrong_sets", "unequal_to_unfused"))
    agree = all(one.get("unfused", {"passed": True})["passed"] for one in variants)
    near = all(one.get("difference_to_baseline", 0.0) <= BASELINE_TOLERANCE for one in variants)
    return passed(record) and "baseline_error" not in record and not mismatches and agree and near


def run_options(arguments: Sequence[str] | None, parser: ArgumentParser) -> Results:
    """Runs what the options ask for on this host's GPUs, which are looked at after all options.  Raises `ProblemError` in their words."""
    with naming_options(MegaMoeOptions):
        given = read_options(MegaMoeOptions, parser.parse_args(arguments))
        session = ScriptSession.given(given)
        return session.run(Host.find())


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the session; exit code 1 when a point failed, was wrong or did not match, 2 for bad input."""
    parser = ArgumentParser(prog="mega_moe", description="Times the fused layer on the GPUs of this host.")
    add_options(parser.add_argument, MegaMoeOptions)
    try:
        found = run_options(arguments, parser)
    except ProblemError as error:
        parser.error(str(error))
    sys.exit(0 if all(right(one) for one in found.records) else 1)


if __name__ == "__main__":
    main()
