"""A benchmark run: points in worker processes, a table as they come in, one JSON file at the end."""

from __future__ import annotations

import json
import math
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from ..artifact.cache import require_writable
from ..artifact.store import ArtifactError, ArtifactStore, dsl_version, source_digest
from ..kernels.mega_moe.config import MegaMoeConfig
from ..kernels.mega_moe.sm90.config import Sm90Config
from ..kernels.registry import find_kernel
from ..problem import ProblemError
from ..tuned import DEFAULT_GPU
from .host import Host
from .point import Layer, Point, measure_point
from .process_group import Worker, run_jobs
from .report import HEADINGS, row
from .results import Results
from .roofline import measured_gpu
from .soak import soak_point
from .trace import trace_point
from .variant import variant_name

POINT_LIMIT_S = 240.0
FOLDERS = re.compile(r"""(?<![\w.:/])/(?:[^\s/"']+/)*(?=[^\s/])""")


@dataclass(frozen=True)
class Session:
    """Options of a run.

    host           whose GPUs it runs on
    artifacts      folder of compiled kernels; missing ones are compiled when the DSL is installed
    out            folder of the JSON files
    baseline           folder with the baseline's wheels, or None
    variants       time every kernel in the folder that fits a point, not only the configured one
    soak           0, or consecutive launches per point to compare instead of timing
    trace          say where the time of a launch goes, from a traced kernel, instead of timing
    watchdog_ms    limit of every wait in a kernel
    other_sources  take kernels of other sources too: only where those lay out the buffers as the present ones do
    """

    points: list[Point]
    host: Host
    artifacts: Path
    out: Path
    baseline: str | None = None
    variants: bool = False
    graphs: bool = True
    soak: int = 0
    trace: bool = False
    watchdog_ms: int = 5000
    other_sources: bool = False

    def __post_init__(self) -> None:
        """Makes the folder `out` if need be.  Raises `HostError` and `ProblemError`."""
        self.host.check(self.points)
        if self.soak < 0:
            raise ProblemError("soak", self.soak, "0 or a number of launches")
        for point in self.points:
            if self.soak and point.remote is not None:
                raise ProblemError("remote", point.remote, "None with a soak, which has routings of its own")
        if self.watchdog_ms < 1:
            raise ProblemError("watchdog_ms", self.watchdog_ms, "at least 1")
        if self.soak and self.trace:
            raise ProblemError("trace", self.trace, "False with a soak")
        if self.baseline is not None and not Path(self.baseline).is_dir():
            raise ProblemError("baseline", self.baseline, "None or a folder with the baseline's unpacked wheels")
        require_writable("out", self.out)


def configs_of(
    store: ArtifactStore, point: Point, host: Host, variants: bool, trace: bool = False, other_sources: bool = False
) -> list[MegaMoeConfig]:
    """Kernels to run: the chosen configuration; with `variants` all that are there; all traced or none.

    Where the DSL is, the chosen one is made if need be.  Where it is not, the first one in the store stands in for it.  Raises
    `ArtifactError` when there is none, or none but of other sources, which are taken only with `other_sources`."""
    chosen = Sm90Config.choose(point.problem, point.tokens, num_sms=host.num_sms, gpu=host.gpu, trace=trace)
    if dsl_version() is not None and not variants:
        store.get(chosen)
        return [chosen]
    there = [one for one in store.configs(Sm90Config, point.problem) if (one.num_sms, one.trace) == (chosen.num_sms, trace)]
    there = [config for config in there if loadable(store, config, other_sources)]
    if not there:
        store.get(chosen)
        return [chosen]
    if variants:
        return [*there]
    return [chosen] if chosen in there else [there[0]]


def loadable(store: ArtifactStore, config: Sm90Config, other_sources: bool) -> bool:
    """Whether there is such a kernel; a line about one of other sources, taken or not."""
    if not store.path(config).exists():
        print(f"made from other sources, {'taken' if other_sources else 'left out'}: {variant_name(config)}", flush=True)
    try:
        store.load(config, any_sources=other_sources)
    except ArtifactError:
        return False
    return True


def work(
    rank: int, jobs: list[tuple[Point, list[MegaMoeConfig]]], report: Callable[[int, dict[str, Any]], None], *, session: Session
) -> None:
    """Body of a worker: points of one shape share their weights."""
    store = ArtifactStore(session.artifacts)
    layer, shape = None, None
    for index, (point, configs) in enumerate(jobs):
        if layer is None or shape != (point.preset, point.ranks, point.experts_per_rank):
            layer = None  # frees the last shape's weights first
            layer = Layer(point.problem, None if session.soak or session.trace else session.baseline)
            shape = (point.preset, point.ranks, point.experts_per_rank)
        if session.soak:
            record = soak_point(point, layer, store, configs, session.watchdog_ms * 1_000_000, session.soak)
        elif session.trace:
            record = trace_point(point, layer, store, configs, session.watchdog_ms * 1_000_000, session.out)
        else:
            record = measure_point(point, layer, store, configs, session.watchdog_ms * 1_000_000, session.graphs)
        report(index, record)


def finite(value: Any) -> Any:
    """JSON values without NaN and infinities, which JSON has no words for: strings instead."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def without_folders(text: str) -> str:
    """The text with the last name alone of every absolute path in it: where things lie on a machine is nobody else's business."""
    return FOLDERS.sub("", text)


def command_line() -> list[str]:
    """This process's command, without the folders of absolute paths."""
    return [Path(sys.argv[0]).name, *map(without_folders, sys.argv[1:])]


def heading(baseline: str | None = None) -> dict[str, Any]:
    """What every results file begins with: when, with which command, and on what."""
    return {"date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), "command": command_line(), **versions(baseline)}


def versions(baseline: str | None = None) -> dict[str, Any]:
    """What the figures depend on; `baseline` is the folder of its packages.  Kernels say themselves which DSL made them."""
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        driver = "unknown"
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "gpus": torch.cuda.device_count(),
        "driver": driver,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "sources": source_digest(find_kernel("mega_moe")),
        "ceilings": measured_gpu(torch.cuda.get_device_name() if torch.cuda.is_available() else DEFAULT_GPU),
        "baseline": packages(baseline),
    }


def packages(folder: str | None) -> dict[str, str]:
    """Names and versions of the packages that are unpacked in a folder."""
    found = distributions(path=[folder]) if folder is not None else ()
    return {one.metadata["Name"]: one.version for one in found}


def run_session(session: Session) -> Results:
    """Runs all points, prints a line for each, writes the JSON file; returns what is in it."""
    host, store = session.host, ArtifactStore(session.artifacts)
    records: list[dict[str, Any]] = []
    head = heading(session.baseline)
    kind = "soak" if session.soak else "trace" if session.trace else "time"
    path = session.out / f"mega_moe_sm90-{kind}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"

    def save(point: Point, record: dict[str, Any]) -> None:
        records.append(finite({"name": point.name, **record}))
        print(row({"name": point.name, **record}), flush=True)
        path.write_text(json.dumps({**head, "records": records}, indent=1) + "\n")

    jobs: dict[int, list[tuple[Point, list[MegaMoeConfig]]]] = {}
    if head["ceilings"] != host.gpu:
        print(f"nobody has measured what {host.gpu} can do: ceilings are those of {head['ceilings']}", flush=True)
    print(HEADINGS, flush=True)
    for point in session.points:
        try:
            configs = configs_of(store, point, host, session.variants, session.trace, session.other_sources)
            jobs.setdefault(point.ranks, []).append((point, configs))
        except Exception as error:  # a point without a kernel must not cost the others
            save(point, {"error": f"{type(error).__name__}: {error}"})
    for ranks, mine in jobs.items():
        with tempfile.TemporaryDirectory() as folder:
            worker = Worker(partial(work, session=session), ranks)
            run_jobs(worker, mine, Path(folder), POINT_LIMIT_S, lambda job, record: save(job[0], record), session.watchdog_ms / 1e3)
    print(f"wrote {path}")
    return Results(path.name, head["gpu"], tuple(records))
