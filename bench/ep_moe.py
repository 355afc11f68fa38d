"""The expert-parallel kernels on two GPUs: bits of small cases, and times beside the fused kernel and its stages in the same process.

    python bench/ep_moe.py prepare FOLDER [options]      where the DSL is: compiles the kernels
    python bench/ep_moe.py run FOLDER [options]          on GPUs: torch and cuda-bindings are enough
    python bench/ep_moe.py table RESULTS                 what each way to compute a layer took, into the table of the GPU (tuned/)

With `--trace`, given to both, kernels leave stamps, and instead of times there is a table of what their warps did, and a file for Perfetto.

Times are of a launch of `dispatch_grouped_gemm` and of one of `grouped_gemm_combine`, without the activation between them, of the fused
kernel, and of each of its stages; and of variants of the two kernels, of which `--variants` has a list, as in "combine scatter=off,dispatch
cluster=1".
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.artifact.workers import compile_into
from megamoe_dsl.bench.ep import DEFAULTS, SMALL, SWITCHED_OFF, Variant, check_bits, configs_of, entry_of, ep_point, without_clamp
from megamoe_dsl.bench.ep_trace import TRACED, trace_ep_point
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import CurrentLayer, Point
from megamoe_dsl.bench.point_options import RunOptions
from megamoe_dsl.bench.points import points_of
from megamoe_dsl.bench.process_group import RankWorker, run_jobs
from megamoe_dsl.bench.report import trace_lines
from megamoe_dsl.bench.result_file import heading, result_path, write
from megamoe_dsl.kernels.ep_moe.config import DispatchGemmConfig
from megamoe_dsl.kernels.ep_moe.tables_config import RoutingTablesConfig
from megamoe_dsl.kernels.mega_moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.moe_stages.family import stage_configs
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.tuned import EpEntry, Table

LIMIT_S = 90.0
WATCHDOG_MS = 5000
BITS = {
    "bits": DEFAULTS,
    "bits without pairs": ("dispatch cluster=1", "combine cluster=1"),
    "bits of a gather": ("dispatch token_saving=off", "combine scatter=off"),
    "bits of rows that are gathered": ("dispatch rows=gathered", "combine"),
    "bits with tail SMs": ("dispatch tail_sms=8", "combine cluster=1"),
    "bits of results that warps send": ("dispatch", "combine interleaved=off token_blocks=2"),
}
"""What small cases are computed with."""


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
    variants: list[Variant],
    traced: Path | None,
) -> None:
    """A worker process; `traced` is the folder of traces."""
    store, layers = ArtifactStore(folder), CurrentLayer()
    for index, job in enumerate(jobs):
        if isinstance(job, Point) and traced is not None:
            record = trace_ep_point(job, layers.of(job), store, WATCHDOG_MS * 1_000_000, traced)
        elif isinstance(job, Point):
            record = ep_point(job, layers.of(job), store, fused_config(job, host), variants, WATCHDOG_MS * 1_000_000)
        else:
            record = check_bits(rank, store, *(Variant(name).fields for name in BITS[job]))
        report(index, record)


def line_of(record: dict[str, Any]) -> str:
    """A record in a line."""
    if "error" in record:
        return f"{record['name']}: FAILED: {record['error']}"
    if record["name"] in BITS:
        equal = record["elements"] - record["unequal"]
        return f"{record['name']}: {equal:,} of {record['elements']:,} elements equal in {record['launches']} launches"
    if "traced" in record:
        lines = [trace_lines({"name": f"{record['name']} {half}", **one}) for half, one in record["traced"].items()]
        return "\n".join(line for some in lines for line in some)
    times = ", ".join(f"{name} {one['median']:.0f} us" for name, one in record["us"].items())
    stages = ", ".join(f"{name.removeprefix('moe_')} {us:.0f}" for name, us in record["stages_us"].items())
    alone = f"dispatch alone {record['dispatch_alone_us']['median']:.0f} us"
    differing = f"; NOT THE SAME BITS: {record['differing']}" if record["differing"] else ""
    return f"{record['name']}: {times}, {alone} ({stages}); y {record['difference']:.3f} away from the fused kernel's{differing}"


def write_table(results: Path) -> Path:
    """Adds the points of a file of results to the table of its GPU; returns the table's path."""
    read = json.loads(results.read_text())
    table = Table.read(read["gpu"], kind=EpEntry)
    for record in read["records"]:
        if "us" in record:
            table = table.having(entry_of(record, results.name))
    return table.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run", "table"))
    parser.add_argument("folder", type=Path, help="of compiled kernels; a JSON file of results for a table")
    parser.add_argument("--preset", default="flash", help="shapes by name")
    parser.add_argument("--experts-per-rank", type=int, help="instead of all")
    parser.add_argument("--remote", type=float, help="fraction of the slots for other ranks' experts")
    parser.add_argument("--tokens", default="1024,4096,8192", help="per rank")
    parser.add_argument("--variants", default=",".join(SWITCHED_OFF), help="kernels with other fields, as in 'combine block_n=128'")
    parser.add_argument("--trace", action="store_true", help="what warps do, instead of times")
    parser.add_argument("--only-times", action="store_true", help="without the bits of small cases")
    parser.add_argument("--jobs", type=int, default=2, help="processes that compile")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    given = parser.parse_args()
    if given.what == "table":
        print(f"wrote {write_table(given.folder)}")
        return
    variants = [*TRACED] if given.trace else [Variant(name) for name in (*DEFAULTS, *filter(None, given.variants.split(",")))]
    options = RunOptions(preset=given.preset, experts_per_rank=given.experts_per_rank, tokens=given.tokens, ranks=str(SMALL.num_ranks))
    records: list[dict[str, Any]] = []
    try:
        points = points_of(options, given.remote)
        host = Host.typical() if given.what == "prepare" else Host.find()
        if given.what == "prepare":
            configs: list[Any] = [one for point in points for one in configs_of(point, host.num_sms, variants).values()]
            if not given.trace:
                configs += [Variant(name).config(SMALL, host.num_sms) for names in BITS.values() for name in names]
            configs += [RoutingTablesConfig.of(one) for one in configs if isinstance(one, DispatchGemmConfig)]
            fused = [] if given.trace else [fused_config(point, host) for point in points]
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

    job = partial(work, folder=given.folder, host=host, variants=variants, traced=given.out.resolve() if given.trace else None)
    with tempfile.TemporaryDirectory() as folder:
        cases = [] if given.only_times or given.trace else [*BITS]
        run_jobs(RankWorker(job, SMALL.num_ranks), [*cases, *points], Path(folder), LIMIT_S, show, WATCHDOG_MS / 1e3)
    print(f"wrote {path}")
    sys.exit(any("error" in one or one.get("unequal", 0) or one.get("differing") for one in records))


if __name__ == "__main__":
    main()
