"""Times the simulator on fixed kernels, beside an older checkout's in turns: warp instructions a second on one core.

    git worktree add FOLDER COMMIT
    python bench/simulator_speed.py --against FOLDER

The launches are the demo's, on SM90 and SM100. They are compiled once, here, and recorded: PTX, arguments and memory. Every turn is a
process of its own that plays a recording with the sources of one checkout. Seconds are CPU time, for other work on the machine should count
as little as it can; the first run of a process, which also turns the PTX into Python, is kept apart. All runs must leave the same memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch_recording import write_recording
from megamoe_dsl.arch import SM90, SM100, Arch
from records import save
from script_options import at_least

ROOT = Path(__file__).parents[1]
KERNELS = {"sm90": SM90, "sm100": SM100}
TOKENS = (13, 7)
SHAPE = {"hidden": 512, "intermediate": 512, "num_experts": 8, "topk": 2, "num_ranks": 2}
SEED, MASK, SMS = 0, 0.2, 4
ATTEMPTS = 3  # what a recording needs may be in use in one process, and free in the next


def record_launch(arch: Arch) -> dict[str, Any]:
    """The demo's first launch, on an architecture: PTX, launches, and the memory that they begin with."""
    import torch

    from megamoe_dsl.artifact.compile import compile_kernel
    from megamoe_dsl.cases import random_case
    from megamoe_dsl.kernels.registry import find_kernel
    from megamoe_dsl.problem import Problem
    from megamoe_dsl.runtime.buffers import Inputs
    from megamoe_dsl.runtime.simulated import SimulatedMoE
    from megamoe_dsl.target import Target

    kernel = find_kernel("mega_moe")
    problem = Problem(**SHAPE, max_tokens_per_rank=max(TOKENS), recipe=kernel.recipes[arch.name][0])
    artifact = compile_kernel(kernel.choose(problem, Target.typical(arch, SMS), max(TOKENS)), line_info=True)
    case = random_case(problem, list(TOKENS), SEED, mask=MASK, exact=True)
    moe = SimulatedMoE(artifact, case.weights, seed=SEED)
    for buffers, inputs in zip(moe.ranks, zip(case.x, case.x_sf, case.topk_idx, case.topk_weights, strict=True), strict=True):
        buffers.store(Inputs(*inputs))
    outputs = [torch.zeros(tokens, problem.hidden, dtype=torch.bfloat16) for tokens in TOKENS]
    return recording(
        artifact.ptx, SEED, moe.visible(outputs), [one for r, y in enumerate(outputs) for one in moe.launches(r, TOKENS[r], y)]
    )


def recording(ptx: str, seed: int, memory: Any, launches: Sequence[Any]) -> dict[str, Any]:
    """Plain values that `play_launch.py` understands, whichever sources it runs."""
    fields = ("grid", "block", "cluster", "dynamic_smem", "args", "rank")
    buffers = [(one.base, one.name, one.rank, one.valid is None, one.read_only, one.data.tobytes()) for one in memory.allocations]
    return {"ptx": ptx, "seed": seed, "memory": buffers, "launches": [{f: getattr(one, f) for f in fields} for one in launches]}


def play(tree: Path, file: Path, race: bool, runs: int) -> list[dict[str, Any]]:
    """Runs of a recording in one process with the sources of a checkout, the first one included."""
    command = [sys.executable, str(ROOT / "bench" / "play_launch.py"), str(file), "--runs", str(runs + 1), *([] if race else ["--no-race"])]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    for _ in range(ATTEMPTS):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if not done.returncode:
            runs_done: list[dict[str, Any]] = json.loads(done.stdout)
            return runs_done
    raise SystemExit(f"{tree.name}: exit code {done.returncode} {ATTEMPTS} times\n{done.stderr}")


def commit_of(tree: Path) -> str:
    """The commit of a checkout, with a mark when files differ from it."""
    asked = ["git", "-C", str(tree), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def summary(turns: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Thousands of warp instructions a second (median, low, high) of all runs but the first of each turn, and of those."""
    warm = [run["instructions"] / run["seconds"] / 1e3 for turn in turns for run in turn[1:]]
    first = [turn[0]["instructions"] / turn[0]["seconds"] / 1e3 for turn in turns]
    return {
        "instructions": turns[0][0]["instructions"],
        "rate": {"median": statistics.median(warm), "low": min(warm), "high": max(warm)},
        "first_rate": {"median": statistics.median(first), "low": min(first), "high": max(first)},
        "seconds": [[run["seconds"] for run in turn] for turn in turns],
    }


def compare(name: str, file: Path, trees: Sequence[Path], race: bool, turns: int, runs: int) -> dict[str, Any]:
    """One kernel with or without the race detector; the order of the checkouts is drawn anew in every turn."""
    done: dict[Path, list[list[dict[str, Any]]]] = {tree: [] for tree in trees}
    rng = random.Random(SEED)
    for _ in range(turns):
        for tree in rng.sample(trees, len(trees)):
            done[tree].append(play(tree, file, race, runs))
    results = {(run["memory"], run["findings"]) for all_turns in done.values() for turn in all_turns for run in turn}
    sources = [{"commit": commit_of(tree), **summary(all_turns)} for tree, all_turns in done.items()]
    record: dict[str, Any] = {"name": name, "race": race, "same_results": len(results) == 1, "sources": sources}
    if len(sources) > 1:
        record["factor"] = {kind: sources[0]["rate"][kind] / sources[1]["rate"][kind] for kind in ("median", "high")}
    return record


def line(record: dict[str, Any]) -> str:
    """A record for people."""
    rates = [(one["commit"], one["rate"]) for one in record["sources"]]
    texts = [f"{commit}: {rate['median']:.0f} ({rate['low']:.0f} to {rate['high']:.0f})" for commit, rate in rates]
    factor = f", {record['factor']['median']:.2f} x" if "factor" in record else ""
    same = "" if record["same_results"] else ", RESULTS DIFFER"
    detector = "with" if record["race"] else "without"
    return f"{record['name']} {detector} the detector, thousand warp instructions a second: {'; '.join(texts)}{factor}{same}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the simulator on fixed kernels, beside an older checkout's in turns.")
    parser.add_argument("--against", type=Path, help="a checkout to compare with, such as a git worktree of an older commit")
    parser.add_argument("--kernels", default=",".join(KERNELS), help=f"of {', '.join(KERNELS)}, separated by commas")
    parser.add_argument("--turns", type=at_least(1), default=5, help="processes of each checkout, kernel and mode")
    parser.add_argument("--runs", type=at_least(1), default=2, help="of a process, besides its first")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    given = parser.parse_args()
    names = given.kernels.split(",")
    if unknown := set(names) - set(KERNELS):
        parser.error(f"--kernels {', '.join(sorted(unknown))}: there are {', '.join(KERNELS)}")
    trees = [ROOT] if given.against is None else [ROOT, given.against.resolve()]
    if not all((tree / "src" / "megamoe_dsl" / "sim").is_dir() for tree in trees):
        parser.error(f"--against {given.against}: no checkout with a simulator")
    records = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            file = Path(folder) / name
            write_recording(file, record_launch(KERNELS[name]))
            for race in (True, False):
                records.append(compare(name, file, trees, race, given.turns, given.runs))
                print(line(records[-1]), flush=True)
    print(f"wrote {save(given.out, 'simulator_speed', records)}")
    sys.exit(not all(record["same_results"] for record in records))


if __name__ == "__main__":
    main()
