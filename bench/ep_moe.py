"""The expert-parallel kernels on two GPUs: bits of small cases, and times beside the fused kernel and its stages in the same process.

    python bench/ep_moe.py prepare FOLDER [options]      where the DSL is: compiles the kernels
    python bench/ep_moe.py run FOLDER [options]          on GPUs: torch and cuda-bindings are enough

Times are of a launch of `dispatch_grouped_gemm` and of one of `grouped_gemm_combine`, without the activation between them, of the fused
kernel, and of each of its stages.  `--fields` replaces fields of both kernels' configurations, as in block_n=128,task_tokens=32.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.artifact.workers import compile_into
from megamoe_dsl.bench.ep import SMALL, check_bits, ep_configs, ep_point, without_clamp
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import CurrentLayer, Point
from megamoe_dsl.bench.point_options import RunOptions
from megamoe_dsl.bench.points import points_of
from megamoe_dsl.bench.process_group import RankWorker, run_jobs
from megamoe_dsl.bench.result_file import heading, result_path, write
from megamoe_dsl.kernels.ep_moe.config import DispatchGemmConfig
from megamoe_dsl.kernels.ep_moe.tables_config import RoutingTablesConfig
from megamoe_dsl.kernels.mega_moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.moe_stages.family import stage_configs
from megamoe_dsl.problem import ProblemError

LIMIT_S = 90.0
WATCHDOG_MS = 5000
BITS = "bits"


def fused_config(point: Point, host: Host) -> Sm90Config:
    """The fused kernel of a point, without a clamp, as the activation between the two kernels."""
    return Sm90Config.choose(without_clamp(point.problem), point.tokens, num_sms=host.num_sms, gpu=host.gpu)


def work(
    rank: int,
    jobs: list[Point | str],
    report: Callable[[int, dict[str, Any]], None],
    *,
    folder: Path,
    host: Host,
    fields: dict[str, int],
) -> None:
    """A worker process."""
    store, layers = ArtifactStore(folder), CurrentLayer()
    for index, job in enumerate(jobs):
        if isinstance(job, Point):
            record = ep_point(job, layers.of(job), store, fused_config(job, host), fields, WATCHDOG_MS * 1_000_000)
        else:
            record = check_bits(rank, store, fields)
        report(index, record)


def line_of(record: dict[str, Any]) -> str:
    """A record in a line."""
    if "error" in record:
        return f"{record['name']}: FAILED: {record['error']}"
    if record["name"] == BITS:
        equal = record["elements"] - record["unequal"]
        return f"{equal:,} of {record['elements']:,} elements equal in {record['launches']} launches"
    times = ", ".join(f"{name} {one['median']:.0f} us" for name, one in record["us"].items())
    stages = ", ".join(f"{name.removeprefix('moe_')} {us:.0f}" for name, us in record["stages_us"].items())
    return f"{record['name']}: {times} ({stages}); y {record['difference']:.3f} away from the fused kernel's"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path, help="of compiled kernels")
    parser.add_argument("--preset", default="flash", help="shapes by name")
    parser.add_argument("--experts-per-rank", type=int, help="instead of all")
    parser.add_argument("--remote", type=float, help="fraction of the slots for other ranks' experts")
    parser.add_argument("--tokens", default="1024,4096,8192", help="per rank")
    parser.add_argument("--fields", default="", help="of both kernels, as in block_n=128")
    parser.add_argument("--jobs", type=int, default=2, help="processes that compile")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    given = parser.parse_args()
    fields = {name: int(value) for name, value in (one.split("=") for one in given.fields.split(",") if one)}
    options = RunOptions(preset=given.preset, experts_per_rank=given.experts_per_rank, tokens=given.tokens, ranks=str(SMALL.num_ranks))
    records: list[dict[str, Any]] = []
    try:
        points = points_of(options, given.remote)
        host = Host.typical() if given.what == "prepare" else Host.find()
        if given.what == "prepare":
            problems = [SMALL, *(point.problem for point in points)]
            configs: list[Any] = [one for problem in problems for one in ep_configs(problem, host.num_sms, **fields)]
            configs += [RoutingTablesConfig.of(one) for one in configs if isinstance(one, DispatchGemmConfig)]
            fused = [fused_config(point, host) for point in points]
            compile_into(given.folder, [*configs, *fused, *(stage for one in fused for stage in stage_configs(one))], given.jobs)
            return
        host.check(points)
    except ProblemError as error:
        parser.error(str(error))
    given.out.mkdir(parents=True, exist_ok=True)
    path, head = result_path(given.out, "ep_moe"), heading()

    def show(job: Point | str, record: dict[str, Any]) -> None:
        records.append({"name": job.name if isinstance(job, Point) else job, **record})
        write(path, head, records)
        print(line_of(records[-1]), flush=True)

    job = partial(work, folder=given.folder, host=host, fields=fields)
    with tempfile.TemporaryDirectory() as folder:
        run_jobs(RankWorker(job, SMALL.num_ranks), [BITS, *points], Path(folder), LIMIT_S, show, WATCHDOG_MS / 1e3)
    print(f"wrote {path}")
    sys.exit(any("error" in one or one.get("unequal", 0) for one in records))


if __name__ == "__main__":
    main()
