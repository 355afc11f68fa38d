"""The benchmark of host time (bench/host_time.py), with stand-ins for GPU and graphs: what it calls and records.  No time is held."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import call_times as host_time
from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.point import SEED, Point
from megamoe_dsl.bench.timing import Times
from megamoe_dsl.cases import TokenInputs, random_inputs, random_weights
from megamoe_dsl.kernels.moe.inputs_config import PreDispatchConfig
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime import inputs_stage, rank_kernel
from megamoe_dsl.runtime.cuda_kernel import ArgumentBlock
from megamoe_dsl.runtime.preparation import layer_kernels
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from megamoe_dsl.target import Target
from simulated_gpu import NUM_SMS, simulated_gpu

MOE = Problem(512, 256, 4, 2, 1, 3, recipe="fp8xfp8")
FORWARD = [f"forward, {kind}{way}" for kind in ("BF16", "FP8", "FP8 in the buffer") for way in ("", ", compiled", ", graph")]
COUNT, REPEATS = 3, 2
CALLED = host_time.WARM_UPS + COUNT * REPEATS + 1
"""The last one is that of `called_once`."""


def called_once(calls: Mapping[str, Callable[[], Any]], launches: int) -> dict[str, Times]:
    """In place of times between a GPU's events: the number of launches that are asked for."""
    for call in calls.values():
        call()
    return {name: Times(launches, launches, launches) for name in calls}


class TinyPoint(Point):
    """A point of the tiny layer."""

    problem = MOE

    def draw(self, seed: int) -> TokenInputs:
        return random_inputs(MOE, 0, self.tokens, seed)


class CountedKernel:
    """In place of a GPU's kernel: counts its launches by kind."""

    launches: ClassVar[Counter[type]] = Counter()

    def __init__(self, artifact: Artifact, *_: Any) -> None:
        self.kind = type(artifact.config)
        self.arguments = ArgumentBlock(artifact.kernel.arguments(artifact.config))

    def launch(self) -> None:
        self.launches[self.kind] += 1


class CountedBaseline:
    """Does nothing, and says what it was asked for."""

    version = "1.2"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def allocate(self, problem: Problem) -> None:
        self.asked.append(f"allocate {problem.max_tokens_per_rank}")

    def load(self, inputs: TokenInputs) -> None:
        self.asked.append(f"load {len(inputs.x)}")

    def __call__(self, y: torch.Tensor) -> None:
        self.asked.append("launch")

    def free(self) -> None:
        self.asked.append("free")


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU without graphs; the replays of what stands for them."""
    found: list[str] = []

    def captured(step: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> Callable[[], None]:
        step(*tensors)
        return lambda: found.append(step.__name__)

    allocate = SymmetricBuffer.allocate
    monkeypatch.setattr(host_time, "captured", captured)
    monkeypatch.setattr(host_time, "synchronize", lambda: None)
    monkeypatch.setattr(host_time, "time_back_to_back", called_once)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(SymmetricBuffer, "allocate", lambda problem: allocate(problem, SM90, device="cpu"))
    with simulated_gpu(monkeypatch):
        for module in (inputs_stage, rank_kernel):
            monkeypatch.setattr(module, "CudaKernel", CountedKernel)
        CountedKernel.launches.clear()
        yield found


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    """Kernels that nobody launches."""
    found = ArtifactStore(tmp_path)
    for config in layer_kernels(MOE, Target(SM90, NUM_SMS, "simulated"), ()):
        found.save(Artifact(config, "ptx", b"cubin", 0.0))
    return found


def measure(store: ArtifactStore, **more: Any) -> dict[str, Any]:
    given = SimpleNamespace(weights=random_weights(MOE, 0, SEED), **{"baseline": None, "baseline_error": None, **more})
    return host_time.measure_host(TinyPoint("tiny", 2, 1), given, store, backend="eager", count=COUNT, repeats=REPEATS)


def test_every_way_to_call_is_timed(replays: list[str], store: ArtifactStore) -> None:
    baseline = CountedBaseline()
    record = measure(store, baseline=baseline)
    assert list(record["host_us"]) == [*FORWARD, "kernel", "torch add_", "baseline"] and record["errors"] == {}
    assert all(one["low"] <= one["median"] <= one["high"] for one in record["host_us"].values())
    assert {name: one["median"] for name, one in record["us"].items()} == dict.fromkeys(record["host_us"], host_time.CALLS)
    assert Counter(replays) == {"forward": CALLED, "forward_fp8": 2 * CALLED}
    made = 2  # when it is compiled, and when it is captured
    launches = {kind.__name__: n for kind, n in CountedKernel.launches.items()}
    assert launches == {PreDispatchConfig.__name__: 2 * (2 * CALLED + made), "Sm90Config": 3 * (2 * CALLED + made) + CALLED}
    assert baseline.asked == ["allocate 3", "load 2", *["launch"] * CALLED, "free"]
    assert (record["tokens"], record["baseline_version"]) == (2, "1.2") and record["point"] == asdict(TinyPoint("tiny", 2, 1))
    assert json.loads(json.dumps(record)) == record
    lines = host_time.text_of({"name": "tiny", **record}).splitlines()
    assert len(lines) == 2 + len(record["host_us"]) and lines[-1].endswith("  baseline")


def test_what_cannot_be_called_costs_no_other(replays: list[str], store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", broken)
    record = measure(store, baseline_error="no such library")
    assert record["errors"] == {
        "baseline": "no such library",
        **{f"forward, {kind}, compiled": "RuntimeError: no compiler" for kind in ("BF16", "FP8", "FP8 in the buffer")},
    }
    assert "forward, FP8, graph" in record["host_us"] and "baseline" not in record["host_us"]
    assert any("FAILED" in line and "no compiler" in line for line in host_time.text_of({"name": "tiny", **record}).splitlines())


def test_calls_take_turns_in_changing_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(host_time, "synchronize", lambda: ran.append("|"))
    found = host_time.time_host({name: lambda name=name: ran.append(name) for name in "abc"}, count=2, repeats=6)
    assert found.keys() == set("abc")
    warm, *turns = "".join(ran).strip("|").split("|")
    assert warm == "".join(name * host_time.WARM_UPS for name in "abc")
    assert all(turn in ("aa", "bb", "cc") for turn in turns)
    rounds = {"".join(turn[0] for turn in turns[i : i + 3]) for i in range(0, len(turns), 3)}
    assert len(rounds) > 2 and {"".join(sorted(one)) for one in rounds} == {"abc"}


def test_the_script_needs_neither_the_dsl_nor_the_command_line() -> None:
    absent = "cutlass", "typer", "rich", "hypothesis", "filelock"
    script = Path(__file__).parents[2] / "bench" / "host_time.py"
    code = f"import runpy, sys\nfor name in {absent!r}:\n    sys.modules[name] = None\nsys.path.insert(0, {str(script.parent)!r})\n"
    code += "sys.argv[1:] = ['run', 'x', '--repeats', '0']\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}runpy.run_path({str(script)!r}, run_name='__main__')"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "argument --repeats: '0': must be a number, at least 1" in done.stderr
