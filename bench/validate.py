"""Everything that needs GPUs, in two commands: what is compiled where the DSL is, and what runs on a host with GPUs.

    python bench/validate.py prepare FOLDER [--arch sm_100a] [--gpus 4]             where the DSL is; some minutes
    python bench/validate.py run FOLDER [--arch sm_100a] [--gpus 4] [--baseline SITE] [--out RESULTS]    on the host; on four H200s some ten
                                                                                    minutes

silicon     y of tiny layers, fused and in stages, and GEMMs of every kind against the simulator's, to the bit
ep          the expert-parallel kernels: tables, rows and y to the bit on 1 to 8 ranks of these GPUs, 1000 launches each; on Hopper
racecheck, memcheck
            compute-sanitizer on one launch of every main loop, of a ring, of stages, of what quantizes BF16 tokens, of those GEMMs and
            of the expert-parallel kernels, where it is installed
layer       the module: graphs, streams, shared buffers, torch.compile, the watchdog
engines     SGLang's and vLLM's call sequences on the plug-ins, in CUDA graphs; on Hopper
time        both presets with what a rank of eight GPUs has, experts and NVLink traffic, beside the baseline if there is one
host_time   what a call costs the host, beside a torch addition and the baseline
packed      the same points with weights of 4 bits, on a pool that is a ring; on Hopper
pairs       weights of 4 bits with 512 tokens and more on a whole pool, in turns with those of 8; 1000 launches of each on one GPU and on
            two; on Hopper
ep_time, ep_bf16
            the expert-parallel kernels beside the fused kernel and its stages, in BF16 beside FP8 and torch, each choice switched off in
            turn; on two or more Hoppers
unfused     both presets with a rank's share: every element of y against the layer's in a launch per stage, 100 launches, each of inputs of
            its own; on Hopper with weights of 4 bits, too
packed_soak 1000 launches in a row of each point of `packed`
trace       the same points, by role
tune        on Blackwell, where nothing has been measured: candidates at three points; `megamoe tune --from` makes a table of the records
soak        1000 launches in a row on 1, 2, ... GPUs, a process each
soak_ranks  the same with eight ranks on these GPUs, in one process; one GPU is enough
packed_ranks
            that with weights of 4 bits, on a pool that is a ring; on Hopper
unfused_ranks
            eight ranks on these GPUs: every element of y against the layer's in a launch per stage, as in `unfused`, at fewer points
graph_soak  on one GPU millions of launches of every family in graphs, on several streams at once; on Hopper
graph_racecheck, graph_memcheck
            compute-sanitizer on some of those that begin early and read weights two K blocks at a time; on Hopper

With --simulated both commands do the same on sizes that the simulator can run, and `run` finds a simulated GPU (bench/stand_in/gpu.py)
where the host has none: it shows that everything is there and fits together.  Nothing is timed, and what is nothing but times is left out.

It needs megamoe_dsl on the path, and on the host torch, cuda-bindings and pytest, which runs the checks of tests/gpu.  Every step runs
whatever became of those before it; the exit code is 1 when one failed.  RESULTS/validate-DATE.json has the commands, how each went, and the
end of what it said.  With --within SECONDS a run ends in time: the command at hand is given up, and those after it are left out, which is a
failure.  Steps of --only run in its order: what matters most is to be named first.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Timer
from typing import Any

from megamoe_dsl.bench.point import FP8
from megamoe_dsl.bench.results import without_folders
from megamoe_dsl.kernels.moe.unfused.family import STAGES
from megamoe_dsl.presets import MEASURED, PRESETS
from records import save
from stand_in.gpu import environment

ROOT = Path(__file__).resolve().parents[1]
TOKENS = "1,8,64,512,2048,8192"
TUNED_TOKENS = "8,64,512"
EP_TOKENS = "8192,32768"
EP_BF16_PRESETS, EP_BF16_TOKENS = ("flash", "deepseek-v3"), "1024,8192"
PACKED, BF16 = "fp8xmxfp4", "bf16xbf16"
PAIRS_TOKENS = "512,2048,8192"
UNFUSED_RANKS_TOKENS = "8,512,2048"  # of 8192 what stages leave for one another would not fit one GPU for eight ranks of Pro
ARCHES = ("sm_90a", "sm_100a")
SIMULATED_SMS = 4
SIMULATED_LIMIT_S = 1200
RANKS = 8
PREPARE_LIMIT_S = 1800
LINES_KEPT = 60
LEFT_OUT = "left out: no time was left"
ONE_LAUNCH = "once"  # cases of silicon.py
KERNELS = "kernel_cutlass"  # as the DSL begins their names
SANITIZER_WATCHDOG_S = 600
PYTEST = ("-m", "pytest", "-vv", "-s", "-m", "gpu")  # lines as they come: what hangs has said where
NO_BASELINE = ("mxf4xmxf4", "mxfp8xmxfp8", "nvfp4xnvfp4")
SIMULATED_CHECKS = "not reserved"
"""What the layer's checks on a simulated GPU are: nothing runs beside a kernel there."""
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


@dataclass(frozen=True)
class Sizes:
    """What the steps run: a shape of the benchmark as options, or None for those of presets; tokens per rank, launches of a soak and of a
    comparison, candidates of `tune` as options of compile_artifacts.py or None for those that `megamoe tune` finds, and what every
    script is told."""

    shape: Command | None
    tokens: str
    tuned_tokens: str
    pairs_tokens: str
    unfused_ranks_tokens: str
    launches: str
    compared: str
    candidates: tuple[str, ...] | None
    checks: tuple[str, ...] = ()
    compiles: tuple[str, ...] = ()

    @classmethod
    def of_presets(cls) -> Sizes:
        """As they are measured."""
        return cls(None, TOKENS, TUNED_TOKENS, PAIRS_TOKENS, UNFUSED_RANKS_TOKENS, "1000", "100", None)

    @classmethod
    def simulated(cls) -> Sizes:
        """What a simulated GPU can do in a minute or two a step."""
        shape, sms = ["--hidden", "512", "--intermediate", "256", "--experts", "4", "--topk", "2"], ("--sms", str(SIMULATED_SMS))
        return cls(shape, "3", "3", "3", "3", "3", "3", ("--set", "num_stages=0,3"), ("--small", *sms), sms)

    def shapes_on(self, ranks: str) -> tuple[Command, ...]:
        """Of the commands for so many ranks."""
        return shapes_of(MEASURED, ranks) if self.shape is None else (self.shape,)


def shapes_of(presets: Sequence[str], ranks: str) -> tuple[Command, ...]:
    """A rank's share of eight; on eight ranks the presets as they are, all in processes that start once."""
    if ranks == str(RANKS):
        return (["--preset", ",".join(presets)],)
    return tuple(["--preset", name, "--experts-per-rank", str(PRESETS[name].experts_per_rank)] for name in presets)


def steps(folder: Path, gpus: int, baseline: Path | None, out: Path, arch: str = ARCHES[0], simulated: bool = False) -> list[Step]:
    """All of them, for a host with `gpus` GPUs of an architecture, or a simulated one."""
    at = {name: str(folder / name) for name in ("checks", "kernels", "traced", "tuned", "host_time", "ep", "packed", "pairs", "graphs")}
    sizes = Sizes.simulated() if simulated else Sizes.of_presets()
    ranks = [str(n) for n in (1, 2, 4, 8) if n <= gpus]
    hopper = arch == ARCHES[0]
    recipes = [FP8] if hopper else list(STAGES[0].recipes[arch])
    traffic = ["--remote", str((RANKS - 1) / RANKS)] if 1 < gpus < RANKS else []
    shared = ["--soak-preset", ",".join(MEASURED), "--soak-tokens"]
    soak, apart = [*shared, sizes.tokens], [*shared, sizes.unfused_ranks_tokens]

    def beside(recipe: str) -> Command:
        return [] if baseline is None or recipe in NO_BASELINE else ["--baseline", str(baseline)]

    def prepared(what: str, *more: str, only: Sequence[str] = recipes) -> tuple[Command, ...]:
        command = [script("tests/gpu/prepare.py"), what, "--kernels", at["checks"], "--gpus", str(gpus), *more, *sizes.checks]
        return tuple([*command, "--recipe", one] for one in only)

    def checked(file: str, *more: str, on: int = gpus, only: Sequence[str] = recipes) -> tuple[Command, ...]:
        command = [*PYTEST, script(f"tests/gpu/{file}"), "--kernels", at["checks"], "--gpus", str(on), *more, *sizes.checks]
        return tuple([*command, "--recipe", one] for one in only)

    def points(on: str, tokens: str, only: Sequence[str]) -> list[tuple[str, Command]]:
        return [(recipe, [*shape, "--tokens", tokens, "--recipe", recipe]) for recipe in only for shape in sizes.shapes_on(on)]

    def compiled(into: str, on: str, *more: str, tokens: str = sizes.tokens, only: Sequence[str] = recipes) -> tuple[Command, ...]:
        command = [script("bench/compile_artifacts.py"), at[into]]
        return tuple([*command, *point, "--ranks", on, *more, *sizes.compiles] for _, point in points(on, tokens, only))

    def candidates() -> tuple[Command, ...]:
        if sizes.candidates is not None:
            return compiled("tuned", ranks[-1], *sizes.candidates, tokens=sizes.tuned_tokens)
        command = ["-m", "megamoe_dsl", "tune", "--compile-only", "--artifacts", at["tuned"], "--ranks", ranks[-1], *traffic]
        return tuple([*command, *point] for _, point in points(ranks[-1], sizes.tuned_tokens, recipes))

    def measured(
        kernels: str, on: str, *more: str, tokens: str = sizes.tokens, baselines: bool = False, only: Sequence[str] = recipes
    ) -> tuple[Command, ...]:
        command = [script("bench/mega_moe.py"), "--artifacts", at[kernels], "--ranks", on, "--out", str(out), *more]
        return tuple([*command, *point, *(beside(recipe) if baselines else [])] for recipe, point in points(on, tokens, only))

    def ep_timed(what: str, presets: Sequence[str], tokens: str, recipe: str, *more: str) -> tuple[Command, ...]:
        command = [script("bench/ep_moe.py"), what, at["ep"], "--ranks", str(gpus), "--only-times", *traffic, *more]
        return tuple([*command, "--tokens", tokens, "--recipe", recipe, *shape] for shape in shapes_of(presets, str(gpus)))

    def host_time(what: str) -> Command:
        return [script("bench/host_time.py"), what, at["host_time"], "--recipe", recipes[0]]

    first = recipes[:1]
    once = checked("test_silicon.py", "-k", ONE_LAUNCH, "--watchdog-s", str(SANITIZER_WATCHDOG_S), on=1, only=first)
    quantize = checked("test_layer_on_gpus.py", "-k", "pre_dispatch_bytes", on=1)
    gemms = checked("test_gemm_on_gpu.py", on=1, only=first)
    ep_once = checked("test_ep_on_gpus.py", "-k", ONE_LAUNCH, "--watchdog-s", str(SANITIZER_WATCHDOG_S), only=first) if hopper else ()
    soaked = ("test_soak_on_gpus.py", *soak, "--soak-launches", sizes.launches, "--soak-out", str(out))
    beside_stages = ("test_unfused_on_gpus.py", *apart, "--unfused-launches", sizes.compared, "--soak-out", str(out))
    tuned = measured("tuned", ranks[-1], *traffic, "--variants", tokens=sizes.tuned_tokens)
    traced = measured("traced", ranks[-1], *traffic, "--trace")
    timed = measured("kernels", ranks[-1], *traffic, baselines=True)
    host = (host_time("prepare"),), ([*host_time("run"), *beside(recipes[0]), "--out", str(out)],)
    sanitized = (*once, *quantize, *gemms, *ep_once)
    bits = (*prepared("silicon", only=first), *prepared("gemm", only=first))
    of_layer, of_ep = prepared("layer"), prepared("ep", only=first) if hopper else ()
    compared = [*recipes, PACKED] if hopper and not simulated else recipes
    stages = (
        compiled("kernels", ranks[-1], "--unfused", only=compared),
        measured("kernels", ranks[-1], "--check", "unfused", "--no-graphs", only=compared),
    )
    halves = (("ep_time", MEASURED, EP_TOKENS, FP8), ("ep_bf16", EP_BF16_PRESETS, EP_BF16_TOKENS, BF16)) if hopper and gpus > 1 else ()
    ring, shared_ring = ["--pool-rows", "0"], ["--soak-pool-rows", "0"]
    packed = measured("packed", ranks[-1], *ring, *traffic, baselines=True, only=[PACKED])
    packed_soak = measured("packed", ranks[-1], *ring, "--soak", sizes.launches, only=[PACKED])
    of_packed_ranks, packed_ranks = prepared("soak", *soak, *shared_ring, only=[PACKED]), checked(*soaked, *shared_ring, only=[PACKED])
    on_rings = compared[len(recipes) :]
    stages_of_ranks = (*prepared("unfused", *apart), *prepared("unfused", *apart, *shared_ring, only=on_rings))
    unfused_ranks = (*checked(*beside_stages), *checked(*beside_stages, *shared_ring, only=on_rings))
    of_packed = compiled("packed", ranks[-1], *ring, only=[PACKED])
    pairs = (
        *measured("pairs", ranks[-1], *traffic, "--variants", "--no-graphs", tokens=sizes.pairs_tokens, baselines=True, only=[PACKED]),
        *measured("pairs", ",".join(ranks[:2]), "--soak", sizes.launches, tokens=sizes.pairs_tokens, only=[PACKED]),
    )
    of_pairs = compiled("pairs", ",".join(dict.fromkeys([*ranks[:2], ranks[-1]])), tokens=sizes.pairs_tokens, only=[PACKED, FP8])
    graph_soak = [script("bench/graph_soak.py"), "run", at["graphs"], "--out", str(out)]
    of_graphs = ([script("bench/graph_soak.py"), "prepare", at["graphs"]],)
    once_in_graphs = [*graph_soak, "--only", "moe,gemm", "--seconds", "0", "--graphs", "1", "--calls", "8"]
    graphs = [
        Step("graph_soak", of_graphs, (graph_soak,), 560),
        *(Step(f"graph_{tool}", of_graphs, (once_in_graphs,), 240, sanitizer(tool)) for tool in ("racecheck", "memcheck")),
    ]
    found = [
        Step("silicon", bits, (*checked("test_silicon.py", only=first), *gemms), 180),
        Step("layer", of_layer, checked("test_layer_on_gpus.py", *(["-k", SIMULATED_CHECKS] if simulated else [])), 300),
        *([Step("engines", prepared("engines"), checked("test_engines_on_gpus.py"), 180)] if hopper and not simulated else []),
        *([Step("gpt_oss", prepared("gpt_oss"), checked("test_gpt_oss_on_gpu.py", on=1), 120)] if hopper and not simulated else []),
        *([Step("ep", of_ep, checked("test_ep_on_gpus.py", only=first), 500)] if hopper and not simulated else []),
        *(Step(tool, (*bits, *of_layer, *of_ep), sanitized, 240, sanitizer(tool)) for tool in ("racecheck", "memcheck") if not simulated),
        Step("time", compiled("kernels", ",".join(ranks)), timed, 300),
        *([] if simulated else [Step("host_time", *host, 240)]),
        *([Step("packed", of_packed, packed, 240)] if hopper and not simulated else []),
        *([Step("pairs", of_pairs, pairs, 150)] if hopper else []),
        *(Step(name, ep_timed("prepare", *kind), ep_timed("run", *kind, "--out", str(out)), 240) for name, *kind in halves),
        Step("unfused", *stages, 400),
        *([Step("packed_soak", of_packed, packed_soak, 300)] if hopper and not simulated else []),
        Step("trace", compiled("traced", ranks[-1], "--set", "trace=1"), traced, 120),
        *([] if hopper else [Step("tune", candidates(), tuned, 400)]),
        Step("soak", compiled("kernels", ",".join(ranks)), measured("kernels", ",".join(ranks), "--soak", sizes.launches), 400),
        Step("soak_ranks", prepared("soak", *soak), checked(*soaked), 400),
        *([Step("packed_ranks", of_packed_ranks, packed_ranks, 400)] if hopper and not simulated else []),
        Step("unfused_ranks", stages_of_ranks, unfused_ranks, 400),
        *(graphs if hopper and not simulated else []),
    ]
    return [replace(one, limit_s=SIMULATED_LIMIT_S) for one in found] if simulated else found


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


def execute(name: str, command: Sequence[str], limit_s: float, variables: Mapping[str, str] | None = None) -> Outcome:
    """Runs one command, with more variables in its environment, shows what it says, and says how it went; leaves it out where no time is
    left."""
    if limit_s <= 0:
        print(f"== {name}: {' '.join(command)}: {LEFT_OUT}", flush=True)
        return Outcome(name, without_folders(" ".join(command)), LEFT_OUT, 0, ())
    start, said = time.monotonic(), deque[str](maxlen=LINES_KEPT)
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **piped, start_new_session=True, env={**os.environ, **(variables or {})}) as process:
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
    told = f"FAILED: not done in {limit_s:.0f} s" if too_long.is_set() else "ok" if status == 0 else f"FAILED with exit code {status}"
    seconds = time.monotonic() - start
    print(f"== {name}: {' '.join(command)}: {told}, {seconds:.0f} s", flush=True)
    return Outcome(name, without_folders(" ".join(command)), told, round(seconds), tuple(map(without_folders, said)))


def validate(what: str, chosen: list[Step], variables: Mapping[str, str] | None = None, within_s: float = math.inf) -> list[Outcome]:
    """Runs the commands of all steps, with more variables in their environment, and ends in so many seconds; what several steps need is
    prepared once."""
    end, found, made = time.monotonic() + within_s, list[Outcome](), list[Command]()
    for step in chosen:
        if what == "run" and step.tool and shutil.which(step.tool[0]) is None:
            print(f"== {step.name}: left out, {step.tool[0]} is not installed", flush=True)
            continue
        commands, before, limit_s = (step.prepare, (), PREPARE_LIMIT_S) if what == "prepare" else (step.run, step.tool, step.limit_s)
        for command in commands:
            if what == "prepare" and command in made:
                continue
            made.append(command)
            left_s = min(limit_s, end - time.monotonic())
            found.append(execute(step.name, [*before, sys.executable, *command], left_s, variables))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path, help="of what `prepare` makes and `run` takes")
    parser.add_argument("--arch", choices=ARCHES, default=ARCHES[0], help="of the GPUs; sm_90a by default")
    parser.add_argument("--simulated", action="store_true", help="small sizes, on one simulated GPU")
    parser.add_argument("--gpus", type=int, default=4, choices=(1, 2, 4, 8), help="of the host")
    parser.add_argument("--only", help="steps, separated by commas, in the order in which they run")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds that `run` may take")
    parser.add_argument("--baseline", type=Path, help="folder with the baseline's packages")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results", help="folder of the JSON files")
    given = parser.parse_args()
    gpus = 1 if given.simulated else given.gpus
    found = steps(given.folder, gpus, given.baseline, given.out, given.arch, given.simulated)
    named = {step.name: step for step in found}
    only = [*named] if given.only is None else given.only.split(",")
    for name in only:
        if name not in named:
            parser.error(f"--only {name}: must be one of {', '.join(named)}")
    gpu = environment(given.arch, SIMULATED_SMS) if given.simulated and given.what == "run" else None
    outcomes = validate(given.what, [named[name] for name in only], gpu, given.within if given.what == "run" else math.inf)
    if given.what == "run":
        kind = "validate_simulated" if given.simulated else "validate"
        print(f"wrote {save(given.out, kind, [asdict(one) for one in outcomes])}")
    sys.exit(not all(one.well for one in outcomes))


if __name__ == "__main__":
    main()
