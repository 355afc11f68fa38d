"""The checks for GPUs on a simulated one (bench/stand_in/gpu.py): kernels go through the CUDA driver's functions, and nothing is a time."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import compile_artifacts
import gemm_silicon
import prepare
import silicon
import validate
from gpu_options import GpuOptions
from megamoe_dsl.arch import SM100
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.point import Point
from megamoe_dsl.bench.results import Results, passed
from megamoe_dsl.json_file import FileError
from megamoe_dsl.kernels.moe.unfused.family import STAGES
from megamoe_dsl.sim import Launch
from portable import dump
from stand_in.gpu import VARIABLE, environment
from stand_in.streams import Streams, stream_classes

ARCH = "sm_100a"
RECIPE = "fp8xfp4"


def step(name: str, folder: Path, out: Path) -> validate.Step:
    found = {one.name: one for one in validate.steps(folder, 1, None, out, ARCH, simulated=True)}
    return found[name]


def run(command: Sequence[str]) -> validate.Outcome:
    return validate.execute("step", [validate.sys.executable, *command], 300, environment(ARCH, validate.SIMULATED_SMS))


def test_silicons_bits_come_through_the_driver(tmp_path: Path) -> None:
    (point,) = [one for one in silicon.points(SM100, small=True) if one.name == f"{RECIPE}_once"]
    (tmp_path / "checks").mkdir()
    silicon.prepare_point(tmp_path / "checks", point)
    (command, _) = step("silicon", tmp_path, tmp_path).run
    outcome = run([*command, "-k", point.name + "]"])
    assert outcome.well, outcome.said
    assert any("ok: 4608 elements, all bits equal" in line for line in outcome.said), outcome.said


def test_a_gemms_wrong_bit_is_noticed(tmp_path: Path) -> None:
    """Exact numbers, one of whose results is changed after it was simulated, and normal ones."""
    exact, normal = [one for one in gemm_silicon.checks(SM100, small=True) if "masked" in one.name]
    folder = tmp_path / "checks"
    for one in (exact, normal):
        gemm_silicon.prepare_check(folder, one)
    record = gemm_silicon.read(folder, exact)
    record["results"]["d"].view(torch.int16).flatten()[0] ^= 1
    (folder / f"{exact.name}{gemm_silicon.SUFFIX}").write_bytes(gzip.compress(dump(record), 1))
    (_, command) = step("silicon", tmp_path, tmp_path).run
    outcome = run([*command, "-k", "masked"])
    told = "elements have other bits than the simulator's"
    assert not outcome.well
    assert any(f"{exact.name}: 1 {told}, 1 are wrong" in line for line in outcome.said), outcome.said
    assert any(f"{normal.name}: 0 {told}, 0 are wrong" in line for line in outcome.said), outcome.said


@pytest.mark.sweep
def test_a_timed_point_is_right_and_has_no_time(tmp_path: Path) -> None:
    command, *_ = step("time", tmp_path, tmp_path).run
    shape = dict(zip(("hidden", "intermediate", "experts", "topk"), (512, 256, 4, 2), strict=True))
    (config,) = compile_artifacts.variants(Point(None, 3, 1, **shape, recipe=RECIPE), {}, validate.SIMULATED_SMS)  # type: ignore[arg-type]
    compile_artifacts.build(tmp_path / "kernels", config)
    outcome = run([*command, "--no-graphs"])
    assert outcome.well, outcome.said
    (file,) = tmp_path.glob("mega_moe_sm100-time-*.json")
    found = json.loads(file.read_text())
    (record,) = found["records"]
    assert found["gpu"] == "simulated" and passed(record) and record["num_sms"] == validate.SIMULATED_SMS
    (variant,) = record["variants"].values()
    assert variant["us"] == dict.fromkeys(("median", "low", "high"), "nan") and variant["check"]["violations"] == 0
    with pytest.raises(FileError):
        Results.read(file)  # nothing that `tune` would take


@pytest.mark.sweep
def test_ranks_of_one_gpu_beside_the_stages(tmp_path: Path) -> None:
    """4-bit weights on Hopper, a pool that is a ring, whose rows are used again: two ranks with half of the GPU's SMs each."""
    given = {"recipe": "fp8xmxfp4", "sms": 4, "small": True, "soak_tokens": "40", "soak_pool_rows": 128, "unfused_launches": 2}
    fused, *stages = prepare.kernels(["unfused"], GpuOptions(**given), 1)  # type: ignore[arg-type]
    assert fused.ring_blocks and fused.problem.num_ranks == 2 and len(stages) == len(STAGES)
    for config in (fused, *stages):
        ArtifactStore(tmp_path).get(config)
    flags = [text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", str(value)) if text != "True"]
    file = validate.script("tests/gpu/test_unfused_on_gpus.py")
    command = [*validate.PYTEST, file, "--kernels", str(tmp_path), "--gpus", "1", *flags, "--soak-out", str(tmp_path)]
    outcome = validate.execute("step", [validate.sys.executable, *command], 300, environment("sm_90a", given["sms"]))  # type: ignore[arg-type]
    assert outcome.well, outcome.said
    (written,) = tmp_path.glob("unfused_ranks-*.json")
    (record,) = json.loads(written.read_text())["records"]
    assert record["unfused"]["launches"] == 2 and record["unfused"]["elements"] > 0 == record["unfused"]["unequal"]
    assert record["num_sms"] == 2 and len(record["kernels"]) == 1


@pytest.mark.sweep
def test_all_of_it(tmp_path: Path) -> None:
    """What `bench/validate.py prepare` and `run` do for Blackwell; some ten minutes."""
    kept = {"prepare": None, "run": environment(ARCH, validate.SIMULATED_SMS)}
    chosen = validate.steps(tmp_path, 1, None, tmp_path / "out", ARCH, simulated=True)
    for what, variables in kept.items():
        outcomes = validate.validate(what, chosen, variables)
        assert [(one.command, one.said) for one in outcomes if not one.well] == []


# --- streams
def launch() -> Launch:
    return Launch(grid=(1, 1, 1), block=(32, 1, 1))


@pytest.fixture
def ran() -> list[list[int]]:
    return []


@pytest.fixture
def streams(ran: list[list[int]]) -> Streams:
    return Streams(lambda launches: ran.append([one.rank for one in launches]))


def test_launches_of_several_streams_run_together(streams: Streams, ran: list[list[int]]) -> None:
    """When somebody looks at one of them; a stream is a rank, whose launches follow one another."""
    cuda = stream_classes(streams)
    first, second = cuda["Stream"](), cuda["Stream"]()
    for one in (first, second, first):
        with cuda["stream"](one):
            streams.launch(launch())
    streams.look()
    assert ran == [], "nothing waits in the default stream"
    with first:
        streams.look()
    assert ran == [[0, 1, 0]]
    cuda["synchronize"]()
    assert len(ran) == 1


def test_a_graph_replays_its_launches(streams: Streams, ran: list[list[int]]) -> None:
    cuda: dict[str, Any] = stream_classes(streams)
    graph = cuda["CUDAGraph"]()
    with cuda["graph"](graph):
        assert cuda["is_current_stream_capturing"]()
        streams.launch(launch())
    cuda["synchronize"]()
    assert ran == [] and not cuda["is_current_stream_capturing"]()
    graph.replay()
    graph.replay()
    cuda["Event"]().record()
    assert ran == [[0, 0]]
    assert cuda["Event"]().elapsed_time(cuda["Event"]()) != cuda["Event"]().elapsed_time(None), "NaN"


def test_what_a_launch_may_touch_lives_until_it_ran(streams: Streams) -> None:
    freed: list[str] = []

    class Tensor:
        def __del__(self) -> None:
            freed.append("tensor")

    streams.use(Tensor())
    streams.launch(launch())
    assert freed == []
    streams.settle()
    assert freed == ["tensor"]


def test_the_variable_names_the_gpu() -> None:
    assert environment(ARCH, 4)[VARIABLE] == "sm_100a:4"
