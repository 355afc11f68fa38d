"""Everything that needs GPUs, in two commands: what is compiled where the DSL is, and what runs on a host with GPUs.

    python bench/validate.py prepare FOLDER [--gpus 4]                              where the DSL is; some minutes
    python bench/validate.py run FOLDER [--gpus 4] [--baseline SITE] [--out RESULTS]    on the host; on four H200s some ten minutes

silicon     y of tiny layers, fused and in stages, and GEMMs of every kind against the simulator's, to the bit
racecheck, memcheck
            compute-sanitizer on one launch of every main loop, of a ring, of stages, of what quantises BF16 tokens, and on those GEMMs,
            where it is installed
layer       the module: graphs, streams, shared buffers, torch.compile, the watchdog
engines     SGLang's and vLLM's call sequences on compat.deep_gemm, in CUDA graphs
time        both presets with what a rank of eight GPUs has, experts and NVLink traffic, beside the baseline if there is one
host_time   what a call costs the host, beside a torch addition and the baseline
unfused     both presets with a rank's share: every element of y against the layer's in a launch per stage
trace       the same points, by role
soak        1000 launches in a row on 1, 2, ... GPUs, a process each
soak_ranks  the same with eight ranks on these GPUs, in one process

It needs megamoe_dsl on the path, and on the host torch, cuda-bindings and pytest, which runs the checks of tests/gpu.  Every step runs
whatever became of those before it; the exit code is 1 when one failed.  RESULTS/validate-DATE.json has the commands, how each went, and the
end of what it said.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Timer

from megamoe_dsl.bench.result_file import save, without_folders
from megamoe_dsl.presets import MEASURED, PRESETS

ROOT = Path(__file__).resolve().parents[1]
TOKENS = "1,8,64,512,2048,8192"
RANKS = 8
PREPARE_LIMIT_S = 1800
LINES_KEPT = 60
ONE_LAUNCH = "once"  # cases of silicon.py
KERNELS = "kernel_cutlass"  # as the DSL begins their names
SANITIZER_WATCHDOG_S = 600
PYTEST = ("-m", "pytest", "-vv", "-s", "-m", "gpu")  # lines as they come: what hangs has said where
Command = list[str]


@dataclass(frozen=True)
class Step:
    """Commands after `python`; `tool` goes before it.  One of `run` is given up after `limit_s` seconds: a hang must not cost the host."""

    name: str
    prepare: tuple[Command, ...]
    run: tuple[Command, ...]
    limit_s: int
    tool: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a command went; `said` are its last lines."""

    step: str
    command: str
    outcome: str
    seconds: int
    said: tuple[str, ...]

    @property
    def well(self) -> bool:
        return self.outcome == "ok"


def steps(folder: Path, gpus: int, baseline: Path | None, out: Path) -> list[Step]:
    """All of them, for a host with `gpus` GPUs."""
    at = {name: str(folder / name) for name in ("checks", "kernels", "traced", "host_time")}
    ranks = [str(n) for n in (1, 2, 4, 8) if n <= gpus]
    experts = {name: str(PRESETS[name].experts_per_rank) for name in MEASURED}
    shares = [["--preset", name, "--experts-per-rank", count, "--tokens", TOKENS] for name, count in experts.items()]
    beside = [] if baseline is None else ["--baseline", str(baseline)]
    traffic = ["--remote", str((RANKS - 1) / RANKS)] if 1 < gpus < RANKS else []
    soak = ["--soak-preset", ",".join(MEASURED), "--soak-tokens", TOKENS]

    def prepared(what: str, *more: str) -> tuple[Command, ...]:
        return ([script("tests/gpu/prepare.py"), what, "--kernels", at["checks"], "--gpus", str(gpus), *more],)

    def checked(file: str, *more: str, on: int = gpus) -> Command:
        return [*PYTEST, script(f"tests/gpu/{file}"), "--kernels", at["checks"], "--gpus", str(on), *more]

    def compiled(into: str, on: str, *more: str) -> tuple[Command, ...]:
        return tuple([script("bench/compile_artifacts.py"), at[into], *one, "--ranks", on, *more] for one in shares)

    def host_time(what: str) -> Command:
        return [script("bench/host_time.py"), what, at["host_time"]]

    def measured(kernels: str, on: str, *more: str) -> tuple[Command, ...]:
        command = [script("bench/mega_moe_sm90.py"), "--artifacts", at[kernels], "--ranks", on, "--out", str(out), *more]
        return tuple([*command, *one] for one in shares)

    once = checked("test_silicon.py", "-k", ONE_LAUNCH, "--watchdog-s", str(SANITIZER_WATCHDOG_S), on=1)
    quantise = checked("test_layer_on_gpus.py", "-k", "pre_dispatch_bytes", on=1)
    gemms = checked("test_gemm_on_gpu.py", on=1)
    soaked = checked("test_soak_on_gpus.py", *soak, "--soak-launches", "1000", "--soak-out", str(out))
    return [
        Step("silicon", (*prepared("silicon"), *prepared("gemm")), (checked("test_silicon.py"), gemms), 180),
        Step("layer", prepared("layer"), (checked("test_layer_on_gpus.py"),), 300),
        Step("engines", prepared("engines"), (checked("test_engines_on_gpus.py"),), 180),
        *(Step(tool, (), (once, quantise, gemms), 240, sanitizer(tool)) for tool in ("racecheck", "memcheck")),
        Step("time", compiled("kernels", ",".join(ranks)), measured("kernels", ranks[-1], *traffic, *beside), 300),
        Step("host_time", (host_time("prepare"),), ([*host_time("run"), *beside, "--out", str(out)],), 240),
        Step("unfused", compiled("kernels", ",".join(ranks), "--unfused"), measured("kernels", ranks[-1], "--check", "unfused"), 400),
        Step("trace", compiled("traced", ranks[-1], "--set", "trace=1"), measured("traced", ranks[-1], *traffic, "--trace"), 120),
        Step("soak", compiled("kernels", ",".join(ranks)), measured("kernels", ",".join(ranks), "--soak", "1000"), 400),
        Step("soak_ranks", prepared("soak", *soak), (soaked,), 400),
    ]


def script(path: str) -> str:
    """A file of this repository, from wherever it is asked for."""
    return str(ROOT / path)


def sanitizer(tool: str) -> tuple[str, ...]:
    return (
        "compute-sanitizer",
        "--tool",
        tool,
        "--report-api-errors",
        "no",
        "--error-exitcode",
        "1",
        "--target-processes",
        "all",
        "--kernel-name",
        f"kernel_substring={KERNELS}",
    )


def execute(name: str, command: Sequence[str], limit_s: int) -> Outcome:
    """Runs one command, shows what it says, and says how it went."""
    start, said = time.monotonic(), deque[str](maxlen=LINES_KEPT)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True) as process:
        too_long = Event()

        def give_up() -> None:
            too_long.set()
            os.killpg(process.pid, signal.SIGKILL)  # with its workers, which would hold the pipe and the GPUs

        timer = Timer(limit_s, give_up)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            said.append(line.rstrip())
        status = process.wait()
        timer.cancel()
    told = f"FAILED: not done in {limit_s} s" if too_long.is_set() else "ok" if status == 0 else f"FAILED with exit code {status}"
    seconds = time.monotonic() - start
    print(f"== {name}: {' '.join(command)}: {told}, {seconds:.0f} s", flush=True)
    return Outcome(name, without_folders(" ".join(command)), told, round(seconds), tuple(map(without_folders, said)))


def validate(what: str, chosen: list[Step]) -> list[Outcome]:
    """Runs the commands of all steps."""
    found = []
    for step in chosen:
        if what == "run" and step.tool and shutil.which(step.tool[0]) is None:
            print(f"== {step.name}: left out, {step.tool[0]} is not installed", flush=True)
            continue
        commands, before, limit_s = (step.prepare, (), PREPARE_LIMIT_S) if what == "prepare" else (step.run, step.tool, step.limit_s)
        found += [execute(step.name, [*before, sys.executable, *command], limit_s) for command in commands]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path, help="of what `prepare` makes and `run` takes")
    parser.add_argument("--gpus", type=int, default=4, choices=(1, 2, 4, 8), help="of the host")
    parser.add_argument("--only", help="steps, separated by commas")
    parser.add_argument("--baseline", type=Path, help="folder with the baseline's packages")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results", help="folder of the JSON files")
    given = parser.parse_args()
    found = steps(given.folder, given.gpus, given.baseline, given.out)
    names = [step.name for step in found]
    only = names if given.only is None else given.only.split(",")
    for name in only:
        if name not in names:
            parser.error(f"--only {name}: must be one of {', '.join(names)}")
    outcomes = validate(given.what, [step for step in found if step.name in only])
    if given.what == "run":
        print(f"wrote {save(given.out, 'validate', [asdict(one) for one in outcomes])}")
    sys.exit(not all(one.well for one in outcomes))


if __name__ == "__main__":
    main()
