"""What the warps of a kernel wait for, by function of its source: samples that Nsight Compute took, laid over the line info.

    python bench/compile_artifacts.py FOLDER --preset pro --experts-per-rank 48 --tokens 512 --ranks 1       where the DSL is
    ncu --target-processes all --clock-control none --cache-control none -k regex:mega_moe --launch-skip 12 --launch-count 1 \\
        --section SourceCounters --section SpeedOfLight --section WarpStateStats -o pro_512 \\
        python bench/compare_kernels.py --points pro:512 --repeats 1 --out /tmp FOLDER                       on a GPU
    ncu -i pro_512.ncu-rep --page source --csv > pro_512.source.csv
    ncu -i pro_512.ncu-rep --page raw --csv > pro_512.raw.csv
    python bench/stalls.py pro:512=pro_512                                                                  where the DSL is

Sixteen warps of a CTA are sampled alike, so that the eight math warps have half of all samples.  An instruction of a helper counts for the
function that control comes from.  Kernels of 4-bit weights take `--recipe fp8xmxfp4` in all three commands of Python.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from megamoe_dsl import Target, choose
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.bench.point import FP8, Point
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.sass.flow import Flow
from megamoe_dsl.sass.listing import Listing
from megamoe_dsl.sass.measurer import function_of
from records import save
from script_points import shares_of

ALIKE = 0.95  # of the instructions of two builds, of which one has line info
METRICS = {
    "gpu": "device__attribute_display_name",
    "us": "gpu__time_duration.avg",
    "dram_busy": "dram__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "shared": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "alu": "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "tensor_core": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "issue": "sm__issue_active.avg.pct_of_peak_sustained_elapsed",
}
MICROSECONDS = {"us": 1.0, "ms": 1e3, "ns": 1e-3}
NOWHERE = "set-up and tear-down"


@dataclass(frozen=True)
class Sampled:
    """An instruction of the profiled kernel: its text, and samples by stall reason."""

    text: str
    reasons: Counter[str]


def read_source_page(path: Path) -> list[Sampled]:
    """Rows of `--page source --csv`: a line with the kernel's name, headings, then an instruction each."""
    with path.open(newline="") as file:
        _, headings, *rows = csv.reader(file)
    text = headings.index("Source")
    reasons = {i: name.removeprefix("stall_") for i, name in enumerate(headings) if name.startswith("stall_") and "(" not in name}
    counts = [Counter({name: int(row[i]) for i, name in reasons.items() if row[i] not in ("", "0")}) for row in rows]
    return [Sampled(row[text].strip(), one) for row, one in zip(rows, counts, strict=True)]


def read_raw_page(path: Path) -> dict[str, Any]:
    """`METRICS` of the one launch on `--page raw --csv`: headings, units, values."""
    with path.open(newline="") as file:
        headings, units, values = csv.reader(file)
    found: dict[str, Any] = {}
    for name, metric in METRICS.items():
        at = headings.index(metric)
        value = values[at].replace(",", "")
        found[name] = value if name == "gpu" else round(float(value) * MICROSECONDS.get(units[at], 1.0), 1)
    return found


def functions(listing: Listing) -> list[str]:
    """The function of every instruction; of a helper's, that of what runs before it."""
    flow = Flow(listing)
    known = {i: name for i, one in enumerate(listing.instructions) if (name := function_of(one)) is not None}
    work = list(known)
    while work:
        at = work.pop(0)
        for following in flow.successors(at, diverged=True):
            if following not in known and following < len(listing.instructions):
                known[following] = known[at]
                work.append(following)
    return [known.get(i, NOWHERE) for i in range(len(listing.instructions))]


def lay_over(sampled: Sequence[Sampled], opcodes: Sequence[str], names: Sequence[str]) -> dict[str, Counter[str]]:
    """Samples by function and reason; `opcodes` and `names` are of the build with line info.  Raises ValueError for another kernel's."""
    theirs = [opcode_of(one.text) for one in sampled]
    matcher = SequenceMatcher(None, theirs, opcodes, autojunk=False)
    if matcher.ratio() < ALIKE:
        raise ValueError(f"the profiled kernel shares {matcher.ratio():.0%} of its instructions with the present one: must be {ALIKE:.0%}")
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for block in matcher.get_matching_blocks():
        for i in range(block.size):
            found[names[block.b + i]].update(sampled[block.a + i].reasons)
    return found


def opcode_of(text: str) -> str:
    """`@!P0 BRA 0x10` as `BRA`."""
    words = text.split()
    return words[1] if words[0].startswith("@") else words[0]


def table(found: dict[str, Counter[str]], least: float = 0.01) -> Iterable[str]:
    """Functions with the most samples, the share of all that each has, and its main reasons."""
    total = sum(sum(reasons.values()) for reasons in found.values())
    for name, reasons in sorted(found.items(), key=lambda one: -sum(one[1].values())):
        share = sum(reasons.values()) / total
        if share >= least:
            main = ", ".join(f"{reason} {count / total:.1%}" for reason, count in reasons.most_common(3))
            yield f"{name:34s} {share:6.1%}  {main}"


def report_of(text: str) -> tuple[Point, Path]:
    """PRESET:TOKENS=REPORT.  Raises ValueError."""
    name, _, report = text.partition("=")
    (point,) = shares_of(name)
    return point, Path(report)


def judge(point: Point, report: Path) -> dict[str, Any]:
    """A record: metrics, and samples by function and reason."""
    listing = compile_kernel(choose(point.problem, Target.typical("sm_90a"), point.tokens, **point.pool), line_info=True).listing
    source, raw = (report.with_name(f"{report.name}.{page}.csv") for page in ("source", "raw"))
    found = lay_over(read_source_page(source), [one.opcode for one in listing.instructions], functions(listing))
    metrics = read_raw_page(raw)
    print(f"{point.name}: {', '.join(f'{name} {value}' for name, value in metrics.items())}")
    print("\n".join(table(found)))
    return {"name": point.name, **metrics, "samples": {name: dict(reasons.most_common()) for name, reasons in found.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description="What the warps of a profiled kernel wait for, by function.")
    parser.add_argument("reports", type=report_of, nargs="+", help="PRESET:TOKENS=REPORT: path of .source.csv and .raw.csv without these")
    parser.add_argument("--recipe", choices=Sm90Config.recipes, default=FP8, help="number formats of the kernels")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    given = parser.parse_args()
    try:
        records = [judge(replace(point, recipe=given.recipe), report) for point, report in given.reports]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"wrote {save(given.out, 'stalls', records)}")


if __name__ == "__main__":
    main()
