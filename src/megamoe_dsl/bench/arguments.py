"""Command line of the benchmark, with the standard library only."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..presets import PRESETS
from ..problem import ProblemError
from .host import Host, HostError
from .point import BASELINE_TOLERANCE
from .points import points_given
from .session import Session, run_session


def parse(arguments: list[str]) -> Session:
    """Options of a run; exits with a message when one is bad."""
    parser = argparse.ArgumentParser(prog="mega_moe_sm90", description="Times the SM90 kernel on the GPUs of this host.")
    parser.add_argument("--preset", default="flash", help=f"of {', '.join(PRESETS)}, separated by commas")
    parser.add_argument("--tokens", default="8,64,512,2048,8192", help="per rank, separated by commas")
    parser.add_argument("--ranks", default="8", help="GPUs, separated by commas")
    parser.add_argument("--experts-per-rank", type=int, help="instead of the preset's: 32 of flash on one rank are its share of eight")
    parser.add_argument("--remote", type=float, help="fraction of the slots for other ranks' experts: 0.875 is eight ranks' NVLink traffic")
    parser.add_argument("--artifacts", type=Path, required=True, help="folder of compiled kernels (bench/compile_artifacts.py)")
    parser.add_argument("--baseline", help="folder with the baseline's unpacked wheels")
    parser.add_argument("--variants", action="store_true", help="time every kernel in the folder that fits a point")
    parser.add_argument("--no-graphs", action="store_true", help="back-to-back launches only")
    parser.add_argument("--soak", type=int, default=0, metavar="N", help="compare N consecutive launches instead of timing")
    parser.add_argument("--trace", action="store_true", help="where the time of a launch goes, from a traced kernel, instead of timing")
    parser.add_argument("--watchdog-ms", type=int, default=5000, help="limit of every wait in a kernel")
    parser.add_argument("--other-sources", action="store_true", help="take kernels of other sources too, if buffers are laid out alike")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON files")
    given = parser.parse_args(arguments)
    points = points_given(parser, given, given.remote)
    try:
        return Session(
            points,
            Host.find(),
            given.artifacts,
            given.out,
            baseline=given.baseline,
            variants=given.variants,
            graphs=not given.no_graphs,
            soak=given.soak,
            trace=given.trace,
            watchdog_ms=given.watchdog_ms,
            other_sources=given.other_sources,
        )
    except (HostError, ProblemError) as error:
        parser.error(str(error))


def main() -> None:
    """Runs the session; exit code 1 when a point failed, was wrong or did not match."""
    failed = [one for one in run_session(parse(sys.argv[1:])).records if not passed(one)]
    sys.exit(1 if failed else 0)


def passed(record: dict) -> bool:
    """Whether a record has no error, no wrong variant, no mismatch, and a baseline that agrees if one was asked for."""
    if "error" in record or "baseline_error" in record:
        return False
    if "trace" in record:
        return True
    if "soak" in record:
        return not (record["soak"]["mismatches"] or record["soak"]["wrong_sets"])
    return all(
        (entry["check"] is None or entry["check"]["passed"]) and entry.get("difference_to_baseline", 0.0) <= BASELINE_TOLERANCE
        for entry in record["variants"].values()
    )
