"""`megamoe bench` and `megamoe tune` of GEMMs, as far as they go without a GPU: options, points, which kernels run, files and tables."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gemms.baselines import find_package
from gemms.counters import launch_once
from gemms.points import dense
from megamoe_dsl import GemmConfig, choose
from megamoe_dsl.artifact import store as store_module
from megamoe_dsl.artifact.store import ArtifactError, ArtifactStore
from megamoe_dsl.bench import variant as variant_module
from megamoe_dsl.bench.gemm import run as run_module
from megamoe_dsl.bench.gemm import session
from megamoe_dsl.bench.gemm.point import GemmPoint, candidates, read_points
from megamoe_dsl.bench.gemm.run import GemmRun, configs_of
from megamoe_dsl.bench.host import Host, HostError
from megamoe_dsl.bench.results import Results
from megamoe_dsl.bench.tuning import GEMMS
from megamoe_dsl.blocks.gemm.problem import GemmProblem
from megamoe_dsl.cli.app import app
from megamoe_dsl.json_file import FileError
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.target import Target
from megamoe_dsl.tuned import DEFAULT_GPU, GemmEntry, Table, tuned_table

RESULTS = Path(__file__).parents[1] / "bench" / "results"
H200 = Target.typical("sm_90a")
POINT = dense(512, 256, 384)

GEMM = ["bench", "--kernel", "gemm"]
REFUSED = {
    "--kernel = 'pre_dispatch': must be mega_moe, gemm, dispatch_grouped_gemm or": ["bench", "--kernel", "pre_dispatch"],
    "--points = 'packed': must be left out with --kernel mega_moe": ["bench", "--points", "packed"],
    "--preset = 'pro': must be left out with --kernel gemm": ["bench", "--kernel", "gemm", "--preset", "pro"],
    "--trace = True: must be left out with --kernel gemm": ["bench", "--kernel", "gemm", "--trace"],
    "--points = None: must be given with --kernel gemm": ["bench", "--kernel", "gemm"],
    **{
        f"--points = '{bad}': must be as 512x2112x7168 (rows, N, K) or packed 32x384": [*GEMM, "--points", f"8x256x128,{bad}"]
        for bad in ("9x9", "", "8x256x128x9", "packed 8x256x128", "many 2x8x256x128", "0x256x128", "8x256xk")
    },
    "--recipe = 'mxf4xmxf4': must be one of fp8xfp8, fp8xmxfp4": [*GEMM, "--recipe", "mxf4xmxf4", "--points", "8x256x128"],
    "--watchdog-ms = 7: must be left out with --kernel gemm": ["tune", "--kernel", "gemm", "--watchdog-ms", "7"],
    "--points = 'packed': must be left out with --from": ["tune", "--kernel", "gemm", "--points", "packed", "--from", "a.json"],
    "a.json: must be a JSON file that `megamoe bench` wrote": ["tune", "--kernel", "gemm", "--from", "a.json"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_go_together_is_refused(message: str) -> None:
    done = CliRunner().invoke(app, REFUSED[message])
    assert done.exit_code == 2 and message in " ".join(done.stderr.split())


def test_a_folder_without_the_baseline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="must be a folder with unpacked wheels, deep_gemm among them"):
        find_package(tmp_path)


def test_blackwells_gemms_are_not_timed(tmp_path: Path) -> None:
    for start in (GemmRun.run, lambda run, host: launch_once(run, host, None)):
        with pytest.raises(HostError, match="GPUs = 'of sm_100a': must be of sm_90a: GEMMs of others are not timed"):
            start(GemmRun((POINT,), tmp_path, tmp_path), Host.typical("sm_100a"))


def test_the_chosen_kernel_runs_and_others_stand_in_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the DSL is not: which kernels are there is all that counts."""
    store = ArtifactStore(tmp_path)
    chosen = choose(POINT.problem, H200, POINT.rows)
    near, far = chosen.replace(group_m=3), GemmConfig(POINT.problem, 192, 128)
    there: list[GemmConfig] = []
    monkeypatch.setattr(variant_module, "dsl_version", lambda: None)
    monkeypatch.setattr(store_module, "find_spec", lambda name: None)
    monkeypatch.setattr(store, "configs", lambda kind, problem: iter(there))
    monkeypatch.setattr(store, "path", lambda config: tmp_path if config in there else tmp_path / "none")
    with pytest.raises(ArtifactError):
        configs_of(store, POINT, H200, variants=False)
    there += [far, near]
    assert configs_of(store, POINT, H200, variants=False) == [near]
    there.reverse()
    assert configs_of(store, POINT, H200, variants=False) == [near]
    there.append(chosen)
    assert configs_of(store, POINT, H200, variants=False) == [chosen]
    assert configs_of(store, POINT, H200, variants=True) == [chosen, near]


def test_a_point_that_fails_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is there after every point."""
    points, seen = read_points("64x2112x7168,64x4096x7168", "fp8xfp8"), list[int]()

    def run_point(point: Any, *_: Any, **__: Any) -> dict[str, Any]:
        seen.append(len(list(tmp_path.glob("gemm-*.json"))))
        if len(seen) == 1:
            raise RuntimeError("illegal instruction")
        return {**asdict(point), "kernels": [{"check": {"passed": True}}]}

    monkeypatch.setattr(session, "run_point", run_point)
    monkeypatch.setattr(run_module, "configs_of", lambda store, point, *given: asked.append((store.folder, point, *given)) or [])
    asked: list[Any] = []
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(session, "table", lambda one: shown.append(one) or "")
    run = GemmRun(tuple(points), tmp_path, tmp_path)
    host = Host(DEFAULT_GPU, 132, 1)
    found = run.run(host)
    assert asked == [(tmp_path, point, host.target, False) for point in points]
    assert [run.right(one) for one in found.records] == [False, True] and shown == [found.records[1]]
    assert found.records[0]["error"] == "RuntimeError: illegal instruction" and seen == [0, 1]
    assert [one["name"] for one in json.loads((tmp_path / found.name).read_text())["records"]] == [point.name for point in points]


def test_a_run_is_right_where_all_its_kernels_are() -> None:
    """Those of others may be not checked."""
    good, bad, unknown = {"check": {"passed": True}}, {"check": {"passed": False}}, {"check": None}
    for kernels, well in (([bad, good], False), ([good, bad], False), ([unknown, good], True), ([], True)):
        assert GemmRun.right({"kernels": kernels}) is well
    assert GemmRun.right({"kernels": [good], "error": "trapped"}) is False


def test_candidates_of_all_points_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(run_module, "compile_ahead", lambda configs, store, *given: made.append((store.folder, list(configs), *given)) or 7)
    points = POINT, dense(64, 256, 384)
    run = GemmRun(points, tmp_path, tmp_path)
    assert run.compile(Host(DEFAULT_GPU, 132, 1), 5) == 7
    assert run.compile(Host(DEFAULT_GPU, 132, 1), 5, most=1) == 7
    assert made == [(tmp_path, [config for point in points for config in candidates(point, most)], 5, "artifacts") for most in (8, 1)]


def test_a_run_becomes_the_table(tmp_path: Path) -> None:
    """Entering a record again changes nothing in the package's table; what a table has stays where another is hardly faster."""
    table = tuned_table(DEFAULT_GPU, GemmEntry)
    name = table.entries[-1].results
    found = GEMMS.read(RESULTS / name)
    assert GEMMS.enter(table, found)[0] == table
    anew, _ = GEMMS.enter(Table(found.gpu, (), GemmEntry), found)
    assert {one.key for one in anew.entries} == {one.key for one in table.entries if one.results == name}
    done = CliRunner().invoke(app, ["tune", "--kernel", "gemm", "--from", str(RESULTS / name), "--tables", str(tmp_path)])
    assert done.exit_code == 0 and Table.read(found.gpu, tmp_path, GemmEntry).entries == anew.entries


def timed(graph_us: float, passed: bool = True, us: float = 50.0, **fields: Any) -> dict[str, Any]:
    """A kernel of a record, with 64 x 128 tiles unless told otherwise."""
    config = asdict(GemmConfig(POINT.problem, **{"block_m": 64, "block_n": 128, **fields}))
    del config["problem"]
    return {"config": config, "check": {"passed": passed}, "us": {"median": us}, "graph_us": {"median": graph_us}}


PAIR, DEEP = {"cluster": 2, "split_k": True}, {"warpgroups": 1, "num_stages": 3, "num_sms": 130}
THEIRS = {**timed(1.0), "config": None}
TILE = {"block_m": 64, "block_n": 128, "warpgroups": 2}


@pytest.mark.parametrize(
    ("kernels", "present", "choice", "us", "reason"),
    [
        ([timed(9.0, us=1.0), timed(8.0, **PAIR), THEIRS], None, {**TILE, **PAIR}, 8.0, "measured"),  # launches back to back say nothing
        ([timed(1.0, passed=False), timed(9.0), timed(8.0, passed=False, **PAIR)], None, TILE, 9.0, "measured"),
        ([timed(9.04, block_m=128)], None, {"block_m": 128, "block_n": 128}, 9.0, "measured"),  # two warpgroups follow from the rows
        ([timed(9.0, **DEEP)], None, {**TILE, "warpgroups": 1}, 9.0, "measured"),  # neither the ring nor the GPU is a choice
        ([timed(100.0), timed(101.0, **PAIR)], {**TILE, **PAIR}, {**TILE, **PAIR}, 101.0, "stays"),
        ([timed(100.0), timed(101.1, **PAIR)], {**TILE, **PAIR}, TILE, 100.0, "measured"),
        ([timed(100.0), timed(100.1, passed=False, **PAIR)], {**TILE, **PAIR}, TILE, 100.0, "measured"),
        ([timed(100.0)], {**TILE, **PAIR}, TILE, 100.0, "measured"),  # what the table has was not timed
        ([timed(101.0, **PAIR), timed(100.0)], {**TILE, **PAIR}, {**TILE, **PAIR}, 101.0, "stays"),
        ([timed(9.0, passed=False), THEIRS], None, None, 0.0, "no kernel passed, or no table has such points"),
        ([], None, None, 0.0, "no kernel passed, or no table has such points"),
    ],
)
def test_what_a_point_says_of_the_table(
    kernels: list[dict[str, Any]], present: dict[str, Any] | None, choice: dict[str, Any] | None, us: float, reason: str
) -> None:
    sms = kernels[0]["config"]["num_sms"] if kernels else 132
    before = GemmEntry(256, 384, "dense", 1, sms, 512, present or {}, 77.0, "before.json")
    table = Table(DEFAULT_GPU, (before,) if present else (), GemmEntry)
    record = {"name": "a point", "problem": asdict(POINT.problem), "counts": [512], "kernels": kernels}
    _, (verdict,) = GEMMS.enter(table, Results("now.json", DEFAULT_GPU, (record,)))
    assert (verdict.name, verdict.reason) == ("a point", reason)
    assert verdict.entry == (None if choice is None else replace(before, choice=choice, us=us, results="now.json"))


@pytest.mark.parametrize("change", [{"counts": [256, 128]}, {"problem": {**asdict(POINT.problem), "output": "f32"}}, {"kernels": None}])
def test_points_that_no_table_has(change: dict[str, Any]) -> None:
    """Unequal groups, other results, and a failure, which has no kernels."""
    record = {"name": "a point", "problem": asdict(POINT.problem), "counts": [512], "kernels": [timed(9.0)], **change}
    record = {name: one for name, one in record.items() if one is not None}
    (verdict,) = GEMMS.enter(Table(DEFAULT_GPU, (), GemmEntry), Results("now.json", DEFAULT_GPU, (record,)))[1]
    assert (verdict.entry, verdict.reason) == (None, "no kernel passed, or no table has such points")


@pytest.mark.parametrize("recipe", ["fp8xfp8", "fp8xmxfp4", "bf16xbf16"])
def test_named_points_are_compiled(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[GemmPoint] = []
    monkeypatch.setattr(GemmRun, "compile", lambda run, *_: compiled.extend(run.points) or len(run.points))
    names = "8x256x384,dense 9x256x384,packed 2x7x256x128,masked 1x7x256x128"
    command = ["tune", "--kernel", "gemm", "--points", names, "--recipe", recipe, "--compile-only", "--artifacts", str(tmp_path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert compiled == [
        GemmPoint(GemmProblem(256, k, kind, groups, recipe=recipe), (rows,) * groups)
        for kind, groups, rows, k in (("dense", 1, 8, 384), ("dense", 1, 9, 384), ("packed", 2, 7, 128), ("masked", 1, 7, 128))
    ]


def test_records_of_layers_are_no_run_of_gemms(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"gpu": DEFAULT_GPU, "records": [{"name": "flash", "point": {}}]}))
    with pytest.raises(FileError):
        GEMMS.read(other)
