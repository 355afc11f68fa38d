"""As many launches as fit into a time, of every family, in graphs and without, on several streams at once; every result is compared on the
GPU, to the bit, and the host waits for none of them.

    python bench/graph_soak.py prepare FOLDER                    where the DSL is: compiles the kernels
    python bench/graph_soak.py run FOLDER [--seconds 240] [--only moe,gemm] [--out RESULTS]      on one GPU

A case has sets of inputs, which differ in routing (even, uneven, masked, all slots masked) and in their numbers of tokens.  The right
result of a set is its first one, launched alone.  Then its calls follow one another in many orders: in graphs, where calls lie back to
back, so that a launch may begin before the one before it has ended, and one by one.  A part of the time the cases take turns; in the rest
all run at once, a stream each.  Of the cases whose CTAs fill the GPU and wait for one another, one at a time runs beside the others.  The
record has the launches of every kernel.  A step that does not end within a minute ends the run, which then has failed.

Under compute-sanitizer, with --seconds 0: every set once without a graph, and every graph once, each case alone.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from launch_cases import CASES, Call, LaunchCase
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.json_file import FOLDER_VARIABLE
from megamoe_dsl.kernels.registry import kernel_of
from megamoe_dsl.runtime.cuda_kernel import CudaKernel
from megamoe_dsl.runtime.preparation import compile_ahead
from megamoe_dsl.target import Target
from records import save_each
from script_options import at_least

TARGET = Target.typical("sm_90a")
IN_FLIGHT = 8
"""Replays of a case that the host is ahead of the GPU, or as many rounds of single calls."""
SINGLE_EVERY = 8
"""Replays between two rounds of single calls."""
HANG_S = 60.0
ALONE = 0.5
"""The part of the time in which cases run alone."""


NOTHING = {"streams": 0, "seconds": 0.0, "launches": 0, "graph_replays": 0, "single_calls": 0, "unequal_elements": None, "by_kernel": {}}
"""What a record says of a case that did not run."""


class LaunchCounter:
    """Launches by kernel, as they are made."""

    def __init__(self) -> None:
        self.made = Counter[str]()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Counts what any `CudaKernel` launches inside."""
        launch = CudaKernel.launch

        def counted(kernel: CudaKernel) -> None:
            config = kernel.artifact.config
            self.made[" ".join([kernel_of(config).name, getattr(config.problem, "recipe", "")]).strip()] += 1
            launch(kernel)

        CudaKernel.launch = counted  # type: ignore[method-assign]
        try:
            yield
        finally:
            CudaKernel.launch = launch  # type: ignore[method-assign]

    @contextmanager
    def apart(self) -> Iterator[Counter[str]]:
        """What is launched inside goes into a counter of its own: a graph that is captured runs later, and often."""
        before, self.made = self.made, Counter[str]()
        own = self.made
        try:
            yield own
        finally:
            self.made = before


@dataclass(frozen=True)
class CapturedCalls:
    """A graph of calls one after another, with its launches."""

    graph: torch.cuda.CUDAGraph
    launches: Counter[str]


def graph_of(work: Callable[[], None], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph


@dataclass
class Runner:
    """A case on its stream."""

    case: LaunchCase
    calls: list[Call]
    counter: LaunchCounter
    unequal: torch.Tensor
    stream: torch.cuda.Stream
    wanted: list[torch.Tensor] = field(default_factory=list)
    graphs: list[CapturedCalls] = field(default_factory=list)
    replays: int = 0
    singles: int = 0
    fences: list[torch.cuda.Event] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, case: LaunchCase, store: ArtifactStore, counter: LaunchCounter, graphs: int, calls: int) -> Runner:
        """Ready to run: first results are there, and graphs captured."""
        unequal = torch.zeros((), dtype=torch.int64, device="cuda")
        one = cls(case, case.calls(store), counter, unequal, torch.cuda.Stream())
        one.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(one.stream):
            for call in one.calls:
                one.wanted.append(call().clone())
                torch.cuda.synchronize()
        if not all(bool(torch.isfinite(y.float()).all()) for y in one.wanted):
            raise ValueError(f"{case.name}: the first results are not finite")
        draw = random.Random(case.name)
        one.graphs = [one.capture([draw.randrange(len(one.calls)) for _ in range(calls)]) for _ in range(graphs)]
        return one

    def capture(self, order: Sequence[int]) -> CapturedCalls:
        """A graph of calls in this order, then of what compares all results."""
        wanted = torch.cat([bits(self.wanted[index]) for index in order])

        def work() -> None:
            results = [self.calls[index]() for index in order]
            self.unequal += (torch.cat([bits(y) for y in results]) != wanted).sum()
            torch._foreach_zero_([y for y in results if y.numel()])  # a launch that does not run shall not find the last replay's result
            self.kept.append((results, wanted))

        with self.counter.apart() as launches:
            return CapturedCalls(graph_of(work, self.stream), launches)

    def step(self, number: int) -> None:
        """The next work of the case: a replay, and now and then single calls in another order."""
        with torch.cuda.stream(self.stream):
            one = self.graphs[number % len(self.graphs)]
            one.graph.replay()
            self.counter.made.update(one.launches)
            self.replays += 1
            if number % SINGLE_EVERY == 0:
                self.run_singles(random.Random(number))
            fence = torch.cuda.Event()
            fence.record()
            self.fences.append(fence)

    def run_singles(self, draw: random.Random) -> None:
        """Every set once, without a graph."""
        for index in draw.sample(range(len(self.calls)), len(self.calls)):
            self.unequal += (bits(self.calls[index]()) != bits(self.wanted[index])).sum()
        self.singles += len(self.calls)

    def wait(self, left: int) -> None:
        """Until at most `left` steps are under way.  Raises `TimeoutError` when none ends for `HANG_S` seconds."""
        while len(self.fences) > left:
            end = time.monotonic() + HANG_S
            while not self.fences[0].query():
                if time.monotonic() > end:
                    raise TimeoutError(f"{self.case.name}: no step has ended for {HANG_S:.0f} s")
                time.sleep(0.0002)
            self.fences.pop(0)


def bits(y: torch.Tensor) -> torch.Tensor:
    """A result's 16-bit words in a row."""
    return y.view(torch.int16).flatten()


def run_together(runners: Sequence[Runner], seconds: float) -> dict[str, Any]:
    """All of them at once, a stream each; a record of what ran."""
    counter = runners[0].counter
    before, replays, singles = counter.made.copy(), *([getattr(one, name) for one in runners] for name in ("replays", "singles"))
    start, number = time.monotonic(), 0
    failure = None
    try:
        while number == 0 or time.monotonic() - start < seconds:
            for runner in runners:
                runner.step(number)
            number += 1
            for runner in runners:
                runner.wait(IN_FLIGHT)
        for runner in runners:
            runner.wait(0)
        torch.cuda.synchronize()
    except (TimeoutError, RuntimeError) as error:
        failure = f"{type(error).__name__}: {error}"
    made = counter.made - before
    found: dict[str, Any] = {
        "cases": [one.case.name for one in runners],
        "streams": len(runners),
        "seconds": round(time.monotonic() - start, 1),
        "launches": sum(made.values()),
        "graph_replays": sum(one.replays for one in runners) - sum(replays),
        "single_calls": sum(one.singles for one in runners) - sum(singles),
        "unequal_elements": None if failure else sum(int(one.unequal) for one in runners),
        "by_kernel": dict(sorted(made.items())),
    }
    return {**found, "failure": failure, "passed": failure is None and not found["unequal_elements"]}


def groups_of(runners: Sequence[Runner]) -> list[list[Runner]]:
    """What runs at once: all that do not fill the GPU, with each of those that do in turn."""
    free, filling = ([one for one in runners if one.case.fills_gpu == fills] for fills in (False, True))
    return [[*free, one] for one in filling] if free and filling else [] if len(runners) == 1 else [free] if free else []


def soak(cases: Sequence[LaunchCase], store: ArtifactStore, seconds: float, graphs: int, calls: int) -> Iterator[dict[str, Any]]:
    """A record of every case alone, then of every group of cases at once, and of a case that cannot be set up; stops at a failure in a run,
    after which a context may be dead."""
    counter = LaunchCounter()
    with counter.watching():
        runners = []
        for case in cases:
            try:
                runners.append(Runner.of(case, store, counter, graphs, calls))
            except (RuntimeError, ValueError) as error:  # the others run all the same
                yield {**NOTHING, "cases": [case.name], "failure": f"{type(error).__name__}: {error}", "passed": False}
        groups = groups_of(runners) if seconds else []
        plan = [([one], ALONE * seconds / len(runners)) for one in runners]
        plan += [(group, (1 - ALONE) * seconds / len(groups)) for group in groups]
        for group, share in plan:
            record = run_together(group, share)
            yield record
            if record["failure"]:
                return


def row(record: dict[str, Any]) -> str:
    """A record as a line."""
    told = f"{record['launches']:,} launches, {record['graph_replays']:,} replays, {record['single_calls']:,} single calls"
    return f"{' | '.join(record['cases'])}: {told}, {record['seconds']} s, unequal {record['unequal_elements']} {record['failure'] or ''}"


def total(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sums over all records."""
    kernels = sum((Counter(one["by_kernel"]) for one in records), Counter[str]())
    names = ("launches", "graph_replays", "single_calls")
    return {
        **{name: sum(one[name] for one in records) for name in names},
        "by_kernel": dict(sorted(kernels.items())),
        "passed": all(one["passed"] for one in records),
    }


def run(given: argparse.Namespace, cases: Sequence[LaunchCase]) -> bool:
    """Whether all was well."""
    os.environ[FOLDER_VARIABLE] = str(given.folder)  # where `moe` and `gemm` find their kernels

    def records() -> Iterator[dict[str, Any]]:
        found = []
        for one in soak(cases, ArtifactStore(given.folder), given.seconds, given.graphs, given.calls):
            found.append(one)
            yield one
        yield {"cases": ["total"], "streams": None, "seconds": sum(one["seconds"] for one in found), **total(found)}

    def say(record: dict[str, Any]) -> str:
        return row({"unequal_elements": "", "failure": "" if record["passed"] else "FAILED", **record})

    return save_each(given.out, "graph_soak", records(), say)[-1]["passed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path, help="of what `prepare` makes and `run` takes")
    parser.add_argument("--only", help="cases whose names begin so, separated by commas")
    parser.add_argument("--seconds", type=float, default=240.0, help="of launches; setting up takes a minute more")
    parser.add_argument("--graphs", type=at_least(1), default=4, help="of every case")
    parser.add_argument("--calls", type=at_least(1), default=64, help="of every graph")
    parser.add_argument("--jobs", type=at_least(1), default=2, help="processes that compile")
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the JSON file")
    given = parser.parse_args()
    cases = [case for case in CASES if case.name.startswith(tuple((given.only or "").split(",")))]
    if not cases:
        parser.error(f"--only {given.only}: must begin some of {', '.join(case.name for case in CASES)}")
    if given.what == "prepare":
        configs = [config for case in cases for config in case.configs(TARGET)]
        print(f"{compile_ahead(configs, ArtifactStore(given.folder), given.jobs)} kernels into {given.folder}")
        return
    if not run(given, cases):
        sys.stdout.flush()
        os._exit(1)  # with a dead context an orderly exit can hang


if __name__ == "__main__":
    main()
