"""Runs a recorded launch in the simulator of whatever sources PYTHONPATH names, and prints what it cost as JSON.

    python bench/play_launch.py RECORDING --runs 3 [--no-race]

`simulator_speed.py` makes recordings and calls this once per turn and source tree, so it uses nothing but the simulator's oldest interface.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import mmap
import time
from pathlib import Path
from typing import Any

import numpy as np

from launch_recording import read_recording
from megamoe_dsl.sim import GlobalMemory, Launch, Simulator

MAP_FIXED_NOREPLACE = 0x100000


def reserve(regions: list[tuple[int, int]]) -> None:
    """Maps the pages of these (address, size) regions: kernel arguments and tensor maps hold the addresses of the recording.

    Raises:
        OSError: this process has something there already; another process may not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    pages = sorted({page for base, size in regions for page in range(base // mmap.PAGESIZE, (base + size - 1) // mmap.PAGESIZE + 1)})
    runs = np.split(np.array(pages), np.flatnonzero(np.diff(pages) > 1) + 1)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED_NOREPLACE
    for run in runs:
        base = int(run[0]) * mmap.PAGESIZE
        if libc.mmap(base, len(run) * mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != base:
            raise OSError(ctypes.get_errno(), f"cannot map {len(run)} pages at {base:#x}")


def play(recording: dict[str, Any], race: bool) -> dict[str, Any]:
    """One run from the recorded state: warp instructions, CPU seconds, findings, and a digest of all memory after it."""
    memory, buffers = GlobalMemory(), []
    for base, name, rank, initialized, read_only, data in recording["memory"]:
        buffer = np.ctypeslib.as_array((ctypes.c_uint8 * len(data)).from_address(base))
        buffer[:] = np.frombuffer(data, np.uint8)
        memory.add(buffer, name=name, rank=rank, initialized=initialized, read_only=read_only)
        buffers.append(buffer)
    launches = [Launch(**one) for one in recording["launches"]]
    simulator = Simulator(recording["ptx"], memory, seed=recording["seed"], race=race)
    start = time.process_time()
    report = simulator.run(launches)
    seconds = time.process_time() - start
    digest = hashlib.sha256(b"".join(buffer.tobytes() for buffer in buffers)).hexdigest()
    return {"instructions": report.instructions, "seconds": seconds, "findings": len(report.findings), "memory": digest}


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs a recorded launch in the simulator and prints what it cost.")
    parser.add_argument("recording", type=Path, help="made by simulator_speed.py")
    parser.add_argument("--runs", type=int, default=3, help="runs in this process; the first one also compiles the PTX to Python")
    parser.add_argument("--no-race", action="store_true", help="without the race detector")
    given = parser.parse_args()
    recording = read_recording(given.recording)
    reserve([(base, len(data)) for base, *_, data in recording["memory"]])
    print(json.dumps([play(recording, not given.no_race) for _ in range(given.runs)]))


if __name__ == "__main__":
    main()
