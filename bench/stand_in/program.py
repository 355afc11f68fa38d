"""Runs one public program on the stand-in host: python -m stand_in.program --result FILE [options] PROGRAM [its arguments]

What the simulator saw is written to FILE as JSON, also when the program fails; the exit status is the program's.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import tempfile
from pathlib import Path

PRELOAD = [
    "cuda.bindings.runtime",
    "cutlass.cute",
    "cutlass.torch",
    "cutlass.utils",
    "megamoe_dsl.sim",
    "stand_in.launches",
    "torch.testing",
]
"""Modules that every program needs, for processes that are forked."""


def run_forked(arguments: list[str], roots: list[str], output: Path) -> None:
    """`main` in a process that is this program's alone: its output goes to a file, its modules are found in `roots`."""
    os.chdir(output.parent)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    sys.path[:0] = roots
    main(arguments)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Options of this module, and the program with its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--arch", default="sm_100a")
    parser.add_argument("--num-sms", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resident", type=int)
    parser.add_argument("--no-races", action="store_true")
    parser.add_argument("--assume-tensor-fences", action="store_true")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Install the stand-in, run the program as `__main__`, write the record."""
    asked = parse(arguments)
    os.environ.update(
        CUTE_DSL_ARCH=asked.arch, CUTE_DSL_DISABLE_FILE_CACHING="1", CUTE_DSL_NO_CACHE="0", TVM_FFI_DISABLE_TORCH_C_DLPACK="1"
    )
    from megamoe_dsl.sim import Assumptions
    from megamoe_dsl.sim.host.module import CAPABILITIES, SimulatedDevice, launches_on

    from . import driver, dsl, torch_cuda
    from .launches import Launches

    launches = Launches(asked.seed, not asked.no_races, asked.resident, Assumptions(tensor_fences=asked.assume_tensor_fences))
    device = SimulatedDevice(asked.arch, asked.num_sms, launches.take)
    torch_cuda.install(launches.show, CAPABILITIES[asked.arch], asked.num_sms)
    driver.install(launches.show, device.attribute)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(CUTE_DSL_DUMP_DIR=folder)
        dsl.install(asked.num_sms, lambda: launches.record.launches > 0)
        sys.argv = [asked.program, *asked.arguments]
        sys.path.insert(0, str(Path(asked.program).resolve().parent))
        try:
            with launches_on(device):
                if asked.program == "pytest":
                    runpy.run_module("pytest", run_name="__main__")
                else:
                    runpy.run_path(asked.program, run_name="__main__")
        finally:
            findings = [{**vars(one), "text": str(one)} for one in launches.record.findings.values()]
            failed = f"{type(device.error).__name__}: {device.error}" if device.error else ""
            asked.result.write_text(json.dumps({**vars(launches.record), "findings": findings, "call_error": failed}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
