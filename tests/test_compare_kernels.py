"""The comparison of kernels (bench/compare_kernels.py): what it finds, times and prints, and what it writes; no GPU."""

import json
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import compare_kernels
import energy_per_call
import records
from megamoe_dsl import Target, choose
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench import timing
from megamoe_dsl.bench.check import Check
from megamoe_dsl.bench.point import Point
from megamoe_dsl.bench.timing import BATCHES, Times
from megamoe_dsl.cases import TokenInputs, random_inputs, random_weights
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import dequantize_e2m1, dequantize_weight_e4m3
from megamoe_dsl.quant.expansion import fp8_weights
from script_points import shares_of

MOE = Problem(512, 256, 2, 1, 1, 24, recipe="fp8xfp8")
CONFIG = choose(MOE, Target.typical("sm_90a", 4), 24, block_m=128)


def store(folder: Path, config: Sm90Config) -> None:
    """A kernel that nobody launches."""
    ArtifactStore(folder).save(Artifact(config, "ptx", b"cubin", 0.0))


def test_results_are_written_without_paths_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/compare_kernels.py", "new", "--out", str(tmp_path)])
    text = records.save(tmp_path, "compare_kernels", [{"us": float("nan")}]).read_text()
    assert f'"{tmp_path.name}"' in text and '"compare_kernels.py"' in text and '"torch"' in text and '"nan"' in text
    assert str(tmp_path) not in text and "/somewhere" not in text


def test_records_of_a_run_that_ends_early_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> Iterator[dict[str, Any]]:
        yield {"point": "first"}
        yield {"point": "second"}
        raise RuntimeError("the third")

    with pytest.raises(RuntimeError, match="the third"):
        records.save_each(tmp_path / "new", "experts", run(), lambda record: record["point"])
    (path,) = (tmp_path / "new").glob("experts-*.json")
    assert [record["point"] for record in json.loads(path.read_text())["records"]] == ["first", "second"]
    assert capsys.readouterr().out.split() == ["first", "second"]


def test_points_are_shares_of_eight_ranks() -> None:
    assert shares_of("flash:512,pro:8") == [Point("flash", 512, 1, 32), Point("pro", 8, 1, 48)]
    for bad in ("flash", "flash:x", "flash:0", "other:8"):
        with pytest.raises(ArgumentTypeError, match=f"{bad!r}: must be PRESET:TOKENS, separated by commas, with presets among flash, pro"):
            shares_of(bad)


@pytest.mark.parametrize("text", ["-1", "0", "x", "1.5"])
def test_numbers_below_the_least_are_refused(text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["compare_kernels.py", "--repeats", text, "old"])
    with pytest.raises(SystemExit) as refused:
        compare_kernels.main()
    assert refused.value.code == 2
    assert f"argument --repeats: {text!r}: must be a number, at least 1" in capsys.readouterr().err


class TinyPoint(Point):
    """A point of the tiny layer."""

    problem = MOE

    def draw(self, seed: int) -> TokenInputs:
        return random_inputs(MOE, 0, self.tokens, seed)


def test_kernels_of_all_folders(tmp_path: Path) -> None:
    point, folders = TinyPoint("tiny", 24, 1), [tmp_path / "old", tmp_path / "new"]
    for folder in folders:
        store(folder, CONFIG)
    store(folders[0], CONFIG.replace(trace=True))
    assert compare_kernels.kernels_of(point, folders) == [(folder, CONFIG) for folder in folders]
    with pytest.raises(LookupError, match="nothing has no kernel for tiny EP1 M=24"):
        compare_kernels.kernels_of(point, [*folders, tmp_path / "nothing"])
    with pytest.raises(LookupError, match="one name: old, old"):
        compare_kernels.kernels_of(point, [folders[0], tmp_path / "other" / "old"])


class FilledKernel:
    """In place of a GPU's: fills y, for as many microseconds."""

    def __init__(self, value: float) -> None:
        self.value, self.launches, self.inputs = value, 0, []
        self.buffers = SimpleNamespace(load=self.inputs.append)

    def __call__(self, y: torch.Tensor) -> None:
        assert self.launches != BATCHES or y.isnan().all()  # the launch that is checked: nothing of another's result
        y.fill_(self.value)
        self.launches += 1

    def synchronize(self) -> None: ...


def test_wrong_kernels_are_timed_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = {"old": FilledKernel(20), "new": FilledKernel(10)}
    for name in bound:
        store(tmp_path / name, CONFIG)

    def time_them(launches: dict[str, Callable[[], None]], count: int, repeats: int) -> dict[str, Times]:
        for launch in launches.values():
            launch()
        return {name: Times(us := bound[name.split()[0]].value, us, us) for name in launches}

    def check(y: torch.Tensor) -> Check:
        return Check(y.numel(), int((y != 20).sum()), 0.0, 0.0, float((y == 20).double().mean()))

    monkeypatch.setattr(compare_kernels.SymmetricBuffer, "allocate", lambda problem, arch: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(timing, "synchronize", lambda: None)
    monkeypatch.setattr(compare_kernels, "Expectation", lambda *arguments: SimpleNamespace(check=check))
    monkeypatch.setattr(compare_kernels, "time_back_to_back", time_them)
    monkeypatch.setattr(energy_per_call, "joules_of", lambda launches, us: {name: us[name] / 1e6 for name in launches})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
    layer = SimpleNamespace(all_weights=[], bind=lambda found, config, symmetric, watchdog_ns: bound[found.folder.name])
    settings = compare_kernels.Settings([tmp_path / "old", tmp_path / "new"], energy_turns=2)
    record = compare_kernels.compare(TinyPoint("tiny", 24, 1), layer, settings)
    assert all(one["joules"] == {key: value / 1e6 for key, value in one["us"].items()} for one in record["kernels"])
    first, second = compare_kernels.table(record, "old").splitlines()[2:]
    assert "+100.0%  WRONG, 0.0000" in first and "new" in first and "+0.0%  ok, 1.0000" in second and "old" in second
    assert [one.launches for one in bound.values()] == [BATCHES + 1 + compare_kernels.WARM_UPS + 1] * 2
    assert [len(one.inputs) for one in bound.values()] == [BATCHES + 1, 0]
    assert record["kernels"][0]["tflops"] == pytest.approx(24 * 6 * 512 * 256 / 10e6)


def entry(folder: str, us: float, passed: bool) -> dict[str, Any]:
    times = {"median": us, "low": us - 1, "high": us + 1}
    check = {"passed": passed, "same_bits": 1.0}
    return {"recipe": "fp8xfp8", "folder": folder, "variant": "block_m=128", "check": check, "us": times, "tflops": 800.0}


def test_table_shows_gains_and_what_is_wrong() -> None:
    record = {"name": "flash", "bound_us": 90.0, "bound_by": "hbm", "kernels": [entry("new", 100.0, False), entry("old", 110.0, True)]}
    new, old = compare_kernels.table(record, "old").splitlines()[2:]
    assert "+10.0%" in new and "WRONG" in new and "new fp8xfp8 block_m" in new
    assert "+0.0%" in old and "ok" in old and "WRONG" not in old


def test_table_shows_joules_where_they_were_measured() -> None:
    joules = {"median": 0.433, "low": 0.4321, "high": 0.45}
    kernels = [entry("new", 100.0, True) | {"joules": joules}, entry("old", 110.0, True)]
    new, old = compare_kernels.table({"name": "flash", "bound_us": 90.0, "bound_by": "hbm", "kernels": kernels}, "old").splitlines()[2:]
    assert new.endswith(", 0.4330 (0.4321 to 0.4500) J") and not old.endswith("J")


def test_comparison_needs_neither_the_dsl_nor_the_command_line() -> None:
    absent = "cutlass", "typer", "rich", "hypothesis", "filelock"
    code = f"import sys\nsys.path[:] = {sys.path!r}\nfor name in {absent!r}:\n    sys.modules[name] = None\nimport compare_kernels\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("biases", [False, True])
def test_fp8_kernels_get_the_same_weights_where_the_last_block_of_gate_and_up_is_half_one(biases: bool) -> None:
    packed = Problem(288, 192, 2, 1, 1, 8, recipe="fp8xmxfp4", activation="swigluoai", biases=biases)
    weights = random_weights(packed, 0, 1)
    found = fp8_weights(weights)
    found.validate(replace(packed, recipe="fp8xfp8"))
    assert torch.equal(dequantize_weight_e4m3(found.fc1, found.fc1_sf, parts=2), dequantize_e2m1(weights.fc1, weights.fc1_sf).double())
    assert torch.equal(dequantize_weight_e4m3(found.fc2, found.fc2_sf), dequantize_e2m1(weights.fc2, weights.fc2_sf).double())
