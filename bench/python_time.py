"""Processor time of calls whose CUDA driver answers at once: what Python, torch and cuda-bindings take.  Needs a C compiler and no GPU.

    python bench/python_time.py [--beside CHECKOUT/src ...] [--out FOLDER]

Sources, these and those `--beside`, take turns, each time in a process of their own (python_calls.py).  Tensors are on the CPU, whose
allocations are not those of a GPU; what torch asks the CUDA runtime for is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from call_times import cpu
from megamoe_dsl.bench.timing import Times
from records import save
from script_options import at_least

ROOT = Path(__file__).parents[1]
CALLS = Path(__file__).with_name("python_calls.py")
ROUNDS = 5
DRIVER = """
static int success(void) { return 0; }
int cuLaunchKernelEx(void) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, void *status) {
  *function = success;
  return 0;
}
"""
"""Stands in for libcuda: every function that cuda-bindings asks for does nothing."""


def build_driver(folder: Path) -> None:
    """libcuda.so.1 in a folder.  Raises CalledProcessError without a C compiler."""
    name = "libcuda.so.1"
    command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name), "-xc", "-"]
    subprocess.run(command, input=DRIVER, text=True, check=True)


def time_calls(sources: Path, driver: Path, how_often: dict[str, int]) -> dict[str, float]:
    """Microseconds of each call with these sources, medians of one process."""
    libraries = os.pathsep.join(filter(None, [str(driver), os.environ.get("LD_LIBRARY_PATH")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LD_LIBRARY_PATH": libraries, "PYTHONPATH": str(sources)}
    command = [sys.executable, str(CALLS), json.dumps(how_often)]
    found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    times: dict[str, float] = json.loads(found.splitlines()[-1])
    return times


def commit_of(sources: Path) -> str:
    """That sources are of, or unknown."""
    command = ["git", "-C", str(sources), "describe", "--always", "--dirty"]
    found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout.strip()
    return found or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, nargs="*", default=[], help="other checkouts' sources")
    parser.add_argument("--rounds", type=at_least(1), default=ROUNDS, help="processes that each of the sources has")
    parser.add_argument("--calls", type=at_least(1), default=50, help="between two looks at the clock")
    parser.add_argument("--repeats", type=at_least(1), default=41, help="of which a process takes the median")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    given = parser.parse_args()
    sources = [ROOT / "src", *(one.resolve() for one in given.beside)]
    found: dict[Path, list[dict[str, float]]] = {one: [] for one in sources}
    draw = random.Random(given.rounds)
    with tempfile.TemporaryDirectory() as folder:
        build_driver(Path(folder))
        for _ in range(given.rounds):
            for one in draw.sample(sources, len(sources)):
                found[one].append(time_calls(one, Path(folder), {"count": given.calls, "repeats": given.repeats}))
    records: list[dict[str, Any]] = []
    for one, rounds in found.items():
        times = {name: Times.of([each[name] for each in rounds]) for name in rounds[0]}
        records.append({"commit": commit_of(one), "cpu": cpu(), "us": {name: asdict(each) for name, each in times.items()}})
        print(f"{one}: us per call", *(f"{t.median:9.2f} {t.low:9.2f} {t.high:9.2f}  {name}" for name, t in times.items()), sep="\n")
    print(f"wrote {save(given.out, 'python_time', records)}")


if __name__ == "__main__":
    main()
