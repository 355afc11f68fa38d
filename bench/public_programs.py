"""Public CuTe DSL programs on the simulator: what ran, what passed its own check, what was found, and why the rest did not.

    python bench/public_programs.py --cutlass CHECKOUT --quack CHECKOUT --results FOLDER
    python bench/public_programs.py --results FOLDER --table       the table of what FOLDER holds
    python bench/public_programs.py --results FOLDER --record bench/results       a record of it

CHECKOUT is a clone of NVIDIA/cutlass, and of Dao-AILab/quack. `public_programs.json` lists the programs with arguments that make them
small, and those left out with the reason. Each runs in a process of its own on the stand-in host (`stand_in`), one at a time; its result
is a file of FOLDER, and one that is there is not run again unless --again says so. A program has passed when it ends with status 0 after
at least one launch. quack needs einops.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from megamoe_dsl import sim
from records import save
from stand_in.program import PRELOAD, run_forked

LIST = Path(__file__).with_suffix(".json")
ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "QUACK_CACHE_ENABLED": "0",
    "TORCHDYNAMO_DISABLE": "1",
    "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",
}
"""What programs are run with, beside what `stand_in.program` sets: nothing is kept on disk, torch.compile does nothing."""
PROCESSES = multiprocessing.get_context("forkserver")  # imports take longer than most programs
EXAMPLES = "examples/python/CuTeDSL"
COLORS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Program:
    """One line of the list. `source` is cutlass or quack; a program of quack is a file of its tests, run by pytest."""

    source: str
    file: str
    arch: str = "sm_100a"
    arguments: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)  # of stand_in.program
    left_out: str = ""

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.source}/{self.file} {self.arch}"

    @property
    def result_name(self) -> str:
        """Name of its result's file."""
        return re.sub(r"\W+", "_", self.name.replace(".py", "")) + ".json"

    def command(self, checkout: Path, result: Path) -> list[str]:
        """What `stand_in.program` is told."""
        options = ["--result", str(result), "--arch", self.arch, *self.options]
        if self.source == "quack":
            return [
                *options,
                "pytest",
                "-q",
                "-x",
                "-p",
                "no:cacheprovider",
                "--rootdir",
                str(checkout),
                str(checkout / self.file),
                *self.arguments,
            ]
        return [*options, str(checkout / EXAMPLES / self.file), *self.arguments]

    def roots(self, checkout: Path) -> list[str]:
        """Where it finds its modules."""
        return [str(checkout / EXAMPLES), str(checkout / EXAMPLES / "cute")] if self.source == "cutlass" else [str(checkout)]


def programs() -> list[Program]:
    """The list, those left out included."""
    return [Program(**one) for one in json.loads(LIST.read_text())]


def preload() -> None:
    """Have the processes to come forked from one that has imported what every program needs."""
    PROCESSES.set_forkserver_preload(PRELOAD)


def run(program: Program, checkout: Path, limit: float) -> dict[str, Any]:
    """Runs one program in a process of its own and judges it."""
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.perf_counter()
        result, output = folder / "result.json", folder / "output.txt"
        child = PROCESSES.Process(target=run_forked, args=(program.command(checkout, result), program.roots(checkout), output))
        child.start()
        child.join(limit)
        if late := child.is_alive():
            child.kill()
            child.join()
        said = COLORS.sub("", output.read_text(errors="replace")) if output.exists() else ""
        record = json.loads(result.read_text()) if result.exists() else {}
    ran, status = bool(record.get("launches")), child.exitcode
    outcome = "time" if late else "passed" if status == 0 and ran else "nothing launched" if status == 0 else "failed"
    reason = "" if outcome == "passed" else record.get("error") or record.get("call_error") or last_error(said)
    wall = round(time.perf_counter() - began, 1)
    judged = {"outcome": outcome, "reason": reason, "wall_s": wall, "simulator": simulator_digest()}
    return {**asdict(program), **judged, **record, "tail": said[-3000:]}


@cache
def simulator_digest() -> str:
    """Eight hexadecimal digits of the simulator's and the stand-in's sources."""
    files = [file for folder in (Path(sim.__file__).parent, Path(__file__).parent / "stand_in") for file in sorted(folder.rglob("*.py"))]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:8]


def recorded(result: dict[str, Any]) -> dict[str, Any]:
    """What a record keeps of a result: findings by kind and source lines, how many places in PTX each."""
    kept = ("source", "file", "arch", "arguments", "options", "outcome", "left_out", "simulator", "launches", "instructions", "unchecked")
    findings = Counter(f"{one['kind']}: {one['first_source']} then {one['second_source']}" for one in result.get("findings", []))
    reason = " ".join(result.get("reason", "").split())[:300]
    seconds = round(result.get("seconds", 0.0), 1)
    return {**{name: result[name] for name in kept if result.get(name)}, "reason": reason, "seconds": seconds, "findings": dict(findings)}


def last_error(output: str) -> str:
    """The last line of an output that names an error."""
    lines = [line.strip() for line in output.splitlines() if re.search(r"\b\w*(Error|Exception|Exit)\b", line)]
    return lines[-1][:300] if lines else output.strip()[-200:]


def table(results: list[dict[str, Any]]) -> str:
    """One line a program, then the totals."""
    lines = [f"{'program':90} {'outcome':17} {'launches':>8} {'instructions':>12} {'sim s':>7} {'findings':>8}  reason"]
    for one in results:
        figures = (
            f"{one.get('launches', 0):8} {one.get('instructions', 0):12,} {one.get('seconds', 0.0):7.1f} {len(one.get('findings', [])):8}"
        )
        reason = one.get("reason") or one.get("left_out", "")
        lines.append(
            f"{one['source'] + '/' + one['file'] + ' ' + one['arch']:90} {one['outcome']:17} {figures}  {' '.join(reason.split())[:160]}"
        )
    totals = Counter(one["outcome"] for one in results)
    clean = sum(one["outcome"] == "passed" and not one["findings"] for one in results)
    counted = ", ".join(f"{count} {outcome}" for outcome, count in totals.most_common())
    return "\n".join([*lines, "", f"{len(results)} programs: {counted}; {clean} passed without a finding"])


def main() -> None:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cutlass", type=Path, help="a clone of NVIDIA/cutlass")
    parser.add_argument("--quack", type=Path, help="a clone of Dao-AILab/quack")
    parser.add_argument("--results", type=Path, required=True, help="folder of results, one file a program")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a program may take")
    parser.add_argument("--again", action="store_true", help="run also what has a result")
    parser.add_argument("--unpassed", action="store_true", help="run again what has not passed")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--record", type=Path, help="run nothing, write a record of the results into this folder")
    asked = parser.parse_args()
    asked.results.mkdir(parents=True, exist_ok=True)
    os.environ.update(ENVIRONMENT)
    preload()
    results = []
    for program in (one for one in programs() if asked.only in one.name):
        file, checkout = asked.results / program.result_name, getattr(asked, program.source)
        known = json.loads(file.read_text()) if file.exists() else None
        if program.left_out:
            results.append({**asdict(program), "outcome": "left out"})
            continue
        wanted = known is None or asked.again or (asked.unpassed and known["outcome"] != "passed")
        if wanted and checkout is not None and not (asked.table or asked.record):
            known = run(program, checkout.resolve(), asked.limit)
            file.write_text(json.dumps(known, indent=1))
            print(
                f"{program.name}: {known['outcome']}, {len(known.get('findings', []))} findings, {known['wall_s']} s",
                file=sys.stderr,
                flush=True,
            )
        results.append(known or {**asdict(program), "outcome": "not run"})
    print(table(results))
    if asked.record:
        print(f"wrote {save(asked.record, 'public_programs', list(map(recorded, results)))}")


if __name__ == "__main__":
    main()
