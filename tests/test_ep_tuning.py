"""`megamoe tune` and `megamoe bench` of the two halves of a layer, and what their runs say of a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from megamoe_dsl.arch import SM90
from megamoe_dsl.bench.ep import EpRun, without_clamp
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import Point
from megamoe_dsl.bench.session import Session
from megamoe_dsl.bench.tuning import CANDIDATES, HALVES_ALONE, winner_of
from megamoe_dsl.bench.tuning import ep_entry as entry_of
from megamoe_dsl.cli.app import app
from megamoe_dsl.cli.bench import run_of
from megamoe_dsl.kernels.moe.halves import family
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.options.points import BenchOptions, TuneOptions
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.target import Target
from megamoe_dsl.tuned import DEFAULT_GPU, EpEntry, Table, tuned_table

POINT = Point(None, 64, 2, hidden=512, intermediate=256, experts=8, topk=2)
US = {
    "dispatch": 100.0,
    "dispatch cluster=1": 99.5,
    "dispatch block_wise=off": 80.0,
    "combine": 50.0,
    "combine cluster=1": 40.0,
    "combine scatter=off": 45.0,
}


def record(**us: float) -> dict[str, Any]:
    """Of a point, with other times."""
    times = {**US, **us}
    stages = {"moe_dispatch": 1.0, "moe_swiglu": 7.0}
    return {
        "name": POINT.name,
        "point": asdict(POINT),
        "us": {name: {"median": one} for name, one in times.items()},
        "stages_us": stages,
        "differing": [],
    }


def test_a_winner_is_faster_by_more_than_noise() -> None:
    assert winner_of(record(), "dispatch") == {"block_wise": False}
    assert winner_of(record(), "combine") == {"cluster": 1}
    assert winner_of(record(**{"dispatch block_wise=off": 99.5}), "dispatch") == {}
    assert winner_of(record(**{"dispatch token_saving=off": 79.0}), "dispatch") == {"token_saving": False}, "noise is of what is chosen"
    for us, fields in ((100.0, {}), (99.9, {"task_tokens": 2})):  # 8 % faster are noise yet
        times = {"dispatch task_tokens=2": {"median": us}, "dispatch": {"median": 108.0}}
        assert winner_of({"us": times}, "dispatch") == fields
    tuned = {**record(**{"dispatch block_wise=off": 120.0}), "tuned": {"dispatch": {"task_tokens": 8}}}
    assert winner_of(tuned, "dispatch") == {"task_tokens": 8}


def write(folder: Path, **changes: Any) -> Path:
    """A file of results with a point and a failure."""
    path = folder / "ep_moe-1.json"
    path.write_text(json.dumps({"gpu": DEFAULT_GPU, "records": [{**record(), **changes}, {"name": "other", "error": "none"}]}))
    return path


def test_a_run_goes_into_the_table(tmp_path: Path) -> None:
    path = write(tmp_path)
    found = CliRunner().invoke(app, ["tune", "--kernel", "dispatch_grouped_gemm", "--tables", str(tmp_path), "--from", str(path)])
    assert found.exit_code == 0 and "1 entries" in found.output
    table = Table.read(DEFAULT_GPU, tmp_path, EpEntry)
    assert [(one.dispatch, one.combine, one.results) for one in table.entries] == [({"block_wise": False}, {"cluster": 1}, path.name)]
    assert [[one.reason for one in HALVES_ALONE.enter(before, HALVES_ALONE.read(path))[1]] for before in (Table(DEFAULT_GPU), table)] == [
        [now, "nothing was timed, or bits differ"] for now in ("measured", "stays")
    ]
    after, verdicts = HALVES_ALONE.enter(table, HALVES_ALONE.read(write(tmp_path, differing=["combine"])))
    assert after == table and [one.entry for one in verdicts] == [None, None]
    assert [EpRun.right(one) for one in json.loads(path.read_text())["records"]] == [False, False]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A table of this point alone."""
    table = Table(DEFAULT_GPU, (entry_of(record(), "none"),), EpEntry)
    monkeypatch.setattr(family, "tuned_table", lambda gpu, kind: table if gpu == DEFAULT_GPU else Table(gpu, (), EpEntry))
    yield


@pytest.mark.usefixtures("measured")
def test_measured_fields_are_chosen_near_their_point() -> None:
    problem = without_clamp(POINT.problem)
    target, other = Target(SM90, 132, DEFAULT_GPU), Target(SM90, 132)
    first = find_kernel("dispatch_grouped_gemm")
    dispatch, combine = (kernel.choose(problem, target, 64) for kernel in (first, find_kernel("grouped_gemm_combine")))
    assert not dispatch.block_wise and dispatch.cluster == 2 and combine.cluster == 1
    assert first.choose(problem, target, 64, block_wise=True).block_wise
    assert first.choose(problem, target, 16).block_wise and first.choose(problem, other, 64).block_wise


@pytest.mark.parametrize("kernel", family.EP_KERNELS, ids=lambda one: one.name)
def test_the_tables_entries_are_configurations(kernel: family.EpKernel) -> None:
    """What was measured is chosen at its own point."""
    entries = tuned_table(DEFAULT_GPU, EpEntry).entries
    assert entries
    for one in entries:
        experts = 2 * one.experts_per_rank
        moe = Problem(one.hidden, one.intermediate, experts, one.topk, 2, one.tokens, recipe=one.recipe)
        config = kernel.choose(moe, Target(SM90, 132, DEFAULT_GPU), one.tokens)
        fields = getattr(one, config.launch.name.lower())
        assert {name: getattr(config, name) for name in fields} == dict(fields)


def test_a_run_has_candidates_of_one_half(tmp_path: Path) -> None:
    """All of them are configurations; a run that traces has kernels of its own."""
    host = Host.typical()
    for name, variants in CANDIDATES.items():
        found = EpRun((POINT,), tmp_path, tmp_path, variants).configs(host)
        kinds = [type(one).__name__ for one in found]
        counts = {kind: kinds.count(kind) for kind in ("DispatchGemmConfig", "GemmCombineConfig")}
        assert sorted(counts.values()) == [1, 1 + len(variants)] and (counts["DispatchGemmConfig"] > 1) == name.startswith("dispatch")
    traced = EpRun((POINT,), tmp_path, tmp_path, trace=True).configs(host)
    assert [getattr(one, "trace", None) for one in traced] == [True, True, None]
    with pytest.raises(ProblemError, match=r"ranks = \[1, 2\]: must be one number for all points"):
        EpRun((POINT, Point(None, 64, 1, hidden=512, intermediate=256, experts=8, topk=2)), tmp_path, tmp_path)


def test_a_run_is_what_was_asked_for() -> None:
    point = replace(POINT, experts=32, remote=0.25)
    asked = BenchOptions(**{name: getattr(point, name) for name in ("hidden", "intermediate", "experts", "topk", "remote")})
    given = replace(asked, tokens="64", ranks="2", recipe=POINT.recipe, artifacts=Path("a"), out=Path("b"), watchdog_ms=7)
    for kernel, candidates in CANDIDATES.items():
        for variants, trace in ((True, False), (False, True)):
            found = run_of(kernel, None, replace(given, variants=variants, trace=trace))
            places = Path("a"), Path("b"), candidates if variants else (), trace
            assert found == EpRun((point,), *places, watchdog_ms=7)
    tuned = TuneOptions(**{name: getattr(given, name) for name in vars(given) if hasattr(TuneOptions, name)})
    for kernel, candidates in CANDIDATES.items():
        assert run_of(kernel, None, tuned) == EpRun((point,), Path("a"), Path("b"), candidates, watchdog_ms=7)
    found = run_of("mega_moe", None, tuned)
    assert isinstance(found, Session) and (found.variants, found.watchdog_ms, found.points) == (True, 7, [point])
    with pytest.raises(ProblemError, match="tokens = 0: must be at least 1"):
        run_of("mega_moe", None, replace(tuned, tokens="0"))


@pytest.mark.parametrize(("right", "code"), [([True, True], 0), ([False, True], 1), ([True, False], 1)])
def test_a_benchmark_fails_where_a_point_is_wrong(right: list[bool], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    run = SimpleNamespace(run=lambda host: ran.append(host) or SimpleNamespace(records=right), right=lambda record: record)
    monkeypatch.setattr("megamoe_dsl.cli.bench.run_of", lambda kernel, points, given: run if (kernel, points) == ("gemm", "x") else None)
    monkeypatch.setattr(Host, "find", lambda: "a host")
    result = CliRunner().invoke(app, ["bench", "--kernel", "gemm", "--points", "x"])
    assert result.exit_code == code and ran == ["a host"]
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--kernel", "routing_tables"], "--kernel = 'routing_tables': must be mega_moe, gemm"),
        (
            ["bench", "--kernel", "grouped_gemm_combine", "--no-graphs"],
            "--no-graphs = True: must be left out with --kernel grouped_gemm_combine",
        ),
        (["tune", "--kernel", "dispatch_grouped_gemm", "--points", "x"], "--points = 'x': must be left out"),
    ],
)
def test_what_does_not_go_with_a_half_is_named(arguments: list[str], message: str) -> None:
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 2 and message in " ".join(found.output.split())
