"""`megamoe tune`: candidates, verdicts on timed points, and the command."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from megamoe_dsl import SM90, Target, choose
from megamoe_dsl.arch import SM100
from megamoe_dsl.artifact import store as artifact_store
from megamoe_dsl.artifact import workers as compile_workers
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.store import ArtifactError, ArtifactStore
from megamoe_dsl.bench import session, variant
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import Point
from megamoe_dsl.bench.results import Results
from megamoe_dsl.bench.session import configs_of
from megamoe_dsl.bench.tuning import LAYERS, judge
from megamoe_dsl.bench.variant import around, candidates, neighbors, read_variant, variant_name
from megamoe_dsl.cli.app import app
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.json_file import FileError
from megamoe_dsl.kernels.moe.choose import measured
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config, cluster_sizes
from megamoe_dsl.options.points import TuneOptions
from megamoe_dsl.presets import MEASURED
from megamoe_dsl.presets.compiled import MAX_TOKENS
from megamoe_dsl.tuned import DEFAULT_GPU, Entry, Table
from result_archive import read_record

RESULTS = Path(__file__).parents[1] / "bench" / "results"
POINT = Point("flash", 512, 8)
FIRST = choose(POINT.problem, Target(SM90, 132), 512)
LESS, FEWER = FIRST.replace(lookahead=16), FIRST.replace(num_stages=3)
EMPTY = Table(DEFAULT_GPU)
runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})


def times(us: float, graph: float | None = None, passed: bool = True, spread: float = 0.01) -> dict[str, Any]:
    """A variant of a record; every repeat within `spread` of the median."""
    both = [{"median": one, "low": one * (1 - spread), "high": one * (1 + spread)} for one in (us, graph or us)]
    return {"check": {"passed": passed}, "us": both[0], "graph_us": both[1]}


def record(variants: dict[Sm90Config, dict[str, Any]], **more: float | str) -> dict[str, Any]:
    point = {"preset": "flash", "tokens": 512, "ranks": 8, "experts_per_rank": None, **more}
    return {"name": POINT.name, "point": point, "variants": {variant_name(one): found for one, found in variants.items()}}


def winner(variants: dict[Sm90Config, dict[str, Any]], table: Table = EMPTY) -> Sm90Config | None:
    entry = judge(table, record(variants), "run.json").entry
    return None if entry is None else measured(Sm90Config, POINT.problem, entry)


# --- names
@pytest.mark.parametrize("config", candidates(POINT.problem, 512, Host.typical().target), ids=variant_name)
def test_a_variant_is_read_back(config: Sm90Config) -> None:
    assert read_variant(variant_name(config), config.problem, config.num_sms) == config


@pytest.mark.parametrize("name", ["", "block_m=8", "block_m=x lookahead=8", "block_m=8 lookahead=8 color=1"])
def test_other_names_are_errors(name: str) -> None:
    with pytest.raises(ConfigError, match=r"variant = .*must be field=number for block_m, lookahead"):
        read_variant(name, POINT.problem, 132)


# --- candidates
@pytest.mark.parametrize("tokens", [1, 8, 64, 256, 512, 2048, 8192])
@pytest.mark.parametrize("preset", ["flash", "pro"])
def test_candidates_surround_the_choice(preset: str, tokens: int) -> None:
    problem = Point(preset, tokens, 8).problem
    chosen = choose(problem, Target.typical("sm_90a"), tokens)
    found = candidates(problem, tokens, Host.typical().target)
    assert found[0] == chosen and choose(problem, Target(SM90, 132), tokens) in found
    assert 5 <= len(found) <= 12 and len(set(found)) == len(found)
    local = problem.experts_per_rank
    quarters = [chosen.lookahead * n // 4 for n in (1, 2, 4, 8, 16)]
    assert {one.lookahead for one in found if one == chosen.replace(lookahead=one.lookahead)} == {n for n in quarters if 1 <= n < local} | {
        local
    }
    assert all(chosen.replace(cluster=n) in found for n in cluster_sizes(problem, chosen.block_m, chosen.num_sms))
    assert chosen.replace(num_stages=chosen.num_stages - 1) in found


def test_neighbors_of_the_smallest_tile_and_ring() -> None:
    assert [around((8, 16, 32, 128), one) for one in (8, 16, 128)] == [(8, 16, 32), (8, 16, 32, 128), (16, 32, 128)]
    shallow = FIRST.replace(num_stages=2)
    near, deeper = (neighbors(one, 512, Target.typical("sm_90a")) for one in (shallow, shallow.replace(num_stages=3)))
    assert all(one.num_stages >= 2 for one in near) and shallow.replace(num_stages=3) not in near and shallow in deeper


# --- verdicts
def test_the_fastest_by_more_than_noise_wins() -> None:
    entry = judge(EMPTY, record({FIRST: times(100), LESS: times(95), FEWER: times(97)}), "run.json").entry
    choice = {"block_m": 128, "lookahead": 16, "num_stages": 0, "cluster": 1}
    assert entry == Entry(4096, 2048, 32, 6, 132, 8, 512, choice, 95.0, "run.json")
    assert judge(EMPTY, record({FIRST: times(100), LESS: times(95)}, remote=0.5), "run.json").entry == entry, "whatever the routing was"
    assert winner({FIRST: times(100), FEWER: times(95)}) == FEWER


@pytest.mark.parametrize(
    ("present", "other"),
    [
        (times(100), times(100)),
        (times(100, spread=0.05), times(96)),  # not below the fastest repeat
        (times(100, spread=0.05), times(95)),
        (times(100, spread=0.001), times(99.7)),  # by less than half a percent
        (times(100), times(95, graph=99.5)),  # not as a graph
        (times(100), times(95, graph=105)),
    ],
)
def test_within_noise_the_choice_stays(present: dict[str, Any], other: dict[str, Any]) -> None:
    assert winner({FIRST: present, LESS: other}) == FIRST


def test_what_was_not_timed_as_a_graph_is_compared_without() -> None:
    alone = {one: {**times(us), "graph_us": None} for one, us in ((FIRST, 100), (LESS, 95))}
    for found in (alone, {**alone, FIRST: times(100, graph=90)}, {**alone, LESS: times(95, graph=300)}):
        assert winner(found) == LESS


def test_a_failed_check_never_wins() -> None:
    assert winner({FIRST: times(100), LESS: times(10, passed=False), FEWER: times(99.9)}) == FIRST
    assert winner({FIRST: times(100), LESS: {**times(10), "check": None}, FEWER: times(99.9)}) == FIRST


def test_without_a_comparison_there_is_no_entry() -> None:
    assert winner({FIRST: times(100)}) is None
    assert winner({FIRST: times(100), LESS: times(10, passed=False)}) is None
    assert winner({FIRST: times(100, passed=False), LESS: times(10), FEWER: times(10)}) is None
    assert winner({LESS: times(10), FEWER: times(20)}) is None
    assert judge(EMPTY, {"name": POINT.name, "error": "trapped"}, "run.json").entry is None
    nothing = {**record({FIRST: times(100), LESS: times(95)}), "point": {"preset": "flash", "tokens": 0, "ranks": 8}}
    assert judge(EMPTY, nothing, "run.json").entry is None
    timed = {FIRST: times(100), LESS: times(95)}
    assert judge(EMPTY, record(timed), "run.json").entry is not None
    coded = judge(EMPTY, record(timed, combine="e4m3"), "run.json")
    assert coded.entry is None and coded.reason.startswith("results travel as e4m3")


def test_configurations_of_other_sources_are_left_out() -> None:
    found = record({FIRST: times(100), LESS: times(95)})
    found["variants"]["block_m=128 lookahead=32 num_stages=99"] = times(1)
    entry = judge(EMPTY, found, "run.json").entry
    assert entry is not None and entry.us == 95


def test_the_tables_entry_is_what_a_winner_must_beat() -> None:
    results = Results("run.json", DEFAULT_GPU, (record({FIRST: times(100), LESS: times(95)}),))
    tuned, _ = LAYERS.enter(EMPTY, results)
    again = {FIRST: times(100), LESS: times(103), FEWER: times(104)}
    assert winner(again, tuned) == FIRST
    assert winner({**again, LESS: times(100.5)}, tuned) == LESS
    assert winner({FIRST: times(50), FEWER: times(104)}, tuned) is None, "the present entry was not timed"
    ring = {one.replace(pool_rows=4096): times(us) for one, us in ((FIRST, 100), (LESS, 103))}
    assert judge(tuned, record(ring, pool_rows=4096), "run.json").reason.startswith("beats block_m=128 lookahead=16 ")


def test_a_run_of_earlier_sources_leaves_no_entry(tmp_path: Path) -> None:
    """Its variants have names with a field that configurations had then."""
    name = "mega_moe_sm90-time-20261121-013225"
    file = tmp_path / f"{name}.json"
    file.write_bytes(read_record(RESULTS, name))
    found = Results.read(file)
    tuned, verdicts = LAYERS.enter(EMPTY, found)
    assert tuned.entries == () and len(verdicts) == len(found.records) == 12


# --- kernels to time
def test_kernels_of_other_sources_are_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their buffers may be laid out otherwise: a point fails where no kernel can be made."""
    store, host, asked = ArtifactStore(tmp_path), Host.typical(), []
    monkeypatch.setattr(variant, "dsl_version", lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(artifact_store, "source_digest", lambda kernel: "00000000")
        store.save(Artifact(LESS, ".entry", b"cubin", 1.0))
    for variants in (True, False):
        with monkeypatch.context() as patch, pytest.raises(ArtifactError, match="no kernel for it"):
            patch.setattr(artifact_store, "find_spec", lambda name: None)
            configs_of(store, POINT, host, variants)
    assert store.origin(LESS)["sources"] == "00000000"
    with monkeypatch.context() as patch:
        patch.setattr(variant, "dsl_version", lambda: "4.8.1")
        patch.setattr(store, "get", asked.append)
        chosen = choose(POINT.problem, Target.typical("sm_90a"), 512)
        assert configs_of(store, POINT, host, True) == [chosen] == configs_of(store, POINT, host, False)
        assert asked == [chosen] * 2
        store.save(Artifact(FEWER, ".entry", b"cubin", 1.0))
        assert configs_of(store, POINT, host, False) == [chosen] and asked == [chosen] * 3, "what is chosen is made"
        store.path(FEWER).unlink()
    for config in (FIRST, FIRST.replace(num_sms=100)):
        store.save(Artifact(config, ".entry", b"cubin", 1.0))
    assert configs_of(store, POINT, host, True) == [FIRST]
    assert configs_of(store, POINT, replace(host, num_sms=100), True) == [FIRST.replace(num_sms=100)]


# --- the command
def test_what_is_tuned_unless_told_is_what_presets_compile() -> None:
    assert TuneOptions().tokens.split(",")[-1] == str(MAX_TOKENS) and tuple(TuneOptions.DEFAULT_PRESETS.split(",")) == MEASURED


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "none.json"], "none.json: must be a JSON file that `megamoe bench` wrote"),
        (["--from", __file__], "must be a JSON file that `megamoe bench` wrote"),
        (["--from", "none.json", "--compile-only"], "--from = 'none.json': must be left out with --compile-only"),
        (["--preset", "flush"], "--preset = 'flush': must be one of flash, pro"),
        (["--tokens", "8,x"], "--tokens = '8,x': must be numbers separated by commas"),
        (["--tokens", "8,0"], "--tokens = 0: must be at least 1"),
        (["--ranks", "7"], "--ranks = 7: must be a divisor of 256, the number of experts"),
        (["--watchdog-ms", "0", "--compile-only"], "--watchdog-ms = 0: must be at least 1"),
        (["--compile-only", "--tokens", "8", "--artifacts", __file__], f"--artifacts = {__file__!r}: must be a folder that can be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_workers, "compile_into", lambda *_: pytest.fail("compiled"))
    result = runner.invoke(app, ["tune", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_tables_from_files(tmp_path: Path) -> None:
    files = [str(path) for path in sorted(RESULTS.glob("mega_moe_sm90-time-*.json"))]
    first = runner.invoke(app, ["tune", "--from", *files, "--tables", str(tmp_path)])
    assert first.exit_code == 0, first.output
    assert "nothing to choose from" in first.output and "nvidia_h200.json" in first.output
    written = (tmp_path / "nvidia_h200.json").read_text()
    assert len(json.loads(written)["entries"]) >= 24
    again = runner.invoke(app, ["tune", "--from", *files, "--tables", str(tmp_path)])
    assert (tmp_path / "nvidia_h200.json").read_text() == written, "the same evidence, the same table"
    assert "wrote" in first.output and "wrote" not in again.output


@pytest.mark.parametrize(
    "bad",
    [
        {"gpu": 5, "records": []},
        {"gpu": DEFAULT_GPU, "records": [1]},
        {"gpu": DEFAULT_GPU, "records": [{"step": "soak"}]},
        {"gpu": DEFAULT_GPU, "records": [{"name": "one", "variants": {}}]},
        {"gpu": DEFAULT_GPU, "records": [{**record({}), "variants": 1}]},
        {"gpu": DEFAULT_GPU, "records": [{**record({}), "variants": {"block_m=8": {"us": 1.0}}}]},
        {"gpu": DEFAULT_GPU, "records": [record({}, color=1)]},
    ],
)
def test_a_bad_file_after_a_good_one_changes_no_table(bad: dict[str, Any], tmp_path: Path) -> None:
    files, tables = [tmp_path / "good.json", tmp_path / "bad.json"], tmp_path / "tables"
    good = {"gpu": DEFAULT_GPU, "records": [record({FIRST: times(100), LESS: times(95)})]}
    for file, found in zip(files, (good, bad), strict=True):
        file.write_text(json.dumps(found))
    result = runner.invoke(app, ["tune", "--from", *map(str, files), "--tables", str(tables)])
    assert result.exit_code == 2 and not tables.exists()
    assert result.stderr == f"error: {files[1]}: must be a JSON file that `megamoe bench` wrote\n"
    result = runner.invoke(app, ["tune", "--from", str(files[0]), "--tables", __file__])
    assert result.exit_code == 2 and "--tables = " in result.stderr and not result.stdout
    assert runner.invoke(app, ["tune", "--from", str(files[0]), "--tables", str(tables)]).exit_code == 0
    assert len(Table.read(DEFAULT_GPU, tables).entries) == 1


TIMED = {"name": POINT.name, "point": asdict(POINT), "variants": {"a": times(100), "b": times(100)}}
FIGURES = [
    (("variants", name, kind, figure), value)
    for name, kind, figure in (("a", "us", "median"), ("b", "us", "low"), ("b", "graph_us", "median"), ("a", "graph_us", "low"))
    for value in (0, -1.0, math.nan, math.inf, "1", None)
]


def changed(path: tuple[str, ...], value: object) -> dict[str, Any]:
    """That record with another value at a path."""
    found = json.loads(json.dumps(TIMED))
    place = found
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *FIGURES,
        *((("name",), value) for value in (5, None, ["flash"])),
        *((("variants",), value) for value in ([1], None, "a")),
        *((("point", name), value) for name, value in (("tokens", -1), ("tokens", "8"), ("ranks", 0), ("recipe", "fp4"), ("color", 1))),
        *((("variants", "b", "check"), value) for value in (5, "passed", [1])),
        (("variants", "a", "us"), None),
    ],
    ids=str,
)
def test_a_record_with_another_value_is_none_of_a_run(path: tuple[str, ...], value: object, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"gpu": DEFAULT_GPU, "records": [TIMED, changed(path, value), TIMED]}))
    with pytest.raises(FileError) as refused:
        LAYERS.read(file)
    assert str(refused.value) == f"{file}: must be a JSON file that `megamoe bench` wrote"


def test_what_a_record_may_lack(tmp_path: Path) -> None:
    """Times as a graph, a check, and all that a point lacks that failed or was traced."""
    given = [TIMED, changed(("variants", "a", "graph_us"), None), changed(("variants", "a", "check"), None), changed(("variants",), {})]
    given += [{"name": "other", "error": "trapped"}, {"name": "other", "point": 5, "trace": {}}]
    (tmp_path / "run.json").write_text(json.dumps({"gpu": DEFAULT_GPU, "records": given}))
    assert LAYERS.read(tmp_path / "run.json") == Results("run.json", DEFAULT_GPU, tuple(given))


def test_files_of_other_scripts_are_refused(tmp_path: Path) -> None:
    for file in RESULTS.glob("validate-*.json"):
        result = runner.invoke(app, ["tune", "--from", str(file), "--tables", str(tmp_path)])
        assert result.exit_code == 2 and "must be a JSON file that `megamoe bench` wrote" in result.stderr


def test_compile_only_makes_every_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sm90Config] = []
    monkeypatch.setattr(compile_workers, "compile_into", lambda folder, configs, *_: asked.extend(configs))
    arguments = ["tune", "--compile-only", "--preset", "flash", "--tokens", "8,512", "--artifacts", str(tmp_path)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    host = Host.typical()
    assert asked == [*candidates(Point("flash", 8, 8).problem, 8, host.target), *candidates(POINT.problem, 512, host.target)]
    asked.clear()
    result = runner.invoke(app, [*arguments, "--ranks", "16"])
    assert result.exit_code == 0 and {one.problem.num_ranks for one in asked} == {16}, "kernels for more GPUs than any host has"
    asked.clear()
    runner.invoke(app, [*arguments, "--pool-rows", "4096"])
    assert {one.pool_rows for one in asked} == {4096}
    asked.clear()
    result = runner.invoke(app, [*arguments, "--recipe", "fp8xfp4"])
    assert result.exit_code == 0 and {one.arch for one in asked} == {SM100}, result.output
    monkeypatch.setattr(artifact_store, "dsl_version", lambda: None)
    assert "must be installed to compile" in runner.invoke(app, arguments).stderr


def test_a_shape_of_ones_own_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its candidates are compiled; a record of it ends in the table, where every layer with such a share finds it."""
    asked: list[Sm90Config] = []
    monkeypatch.setattr(compile_workers, "compile_into", lambda folder, configs, *_: asked.extend(configs))
    shape = {"hidden": 6144, "intermediate": 2048, "experts": 384, "topk": 8}
    options = [f"--{name}={value}" for name, value in shape.items()]
    result = runner.invoke(app, ["tune", "--compile-only", *options, "--tokens", "64", "--artifacts", str(tmp_path)])
    assert result.exit_code == 0, result.output
    point = Point(None, 64, 8, **shape)
    assert asked == candidates(point.problem, 64, Host.typical().target)
    chosen, other = asked[0], asked[-1]
    variants = {variant_name(one): times(us) for one, us in ((chosen, 100), (other, 90))}
    entry = judge(EMPTY, {"name": point.name, "point": json.loads(json.dumps(asdict(point))), "variants": variants}, "run.json").entry
    assert entry is not None and entry.us == 90 and measured(Sm90Config, point.problem, entry) == other
    assert (entry.hidden, entry.intermediate, entry.experts_per_rank, entry.topk) == (6144, 2048, 48, 8)


@pytest.mark.parametrize("option", ["out", "tables"])
def test_a_folder_that_cannot_be_written_is_refused_before_compiling(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_workers, "compile_into", lambda *_: pytest.fail("compiled"))
    monkeypatch.setattr(Host, "find", Host.typical)
    result = runner.invoke(app, ["tune", "--preset", "flash", "--tokens", "8", f"--{option}", __file__])
    assert result.exit_code == 2
    assert f"--{option} = {__file__!r}: must be a folder that can be written (" in result.stderr


def test_a_run_ends_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are timed in turns; the exit code says whether all points were right."""
    asked: list[session.Session] = []

    def run(one: session.Session, host: Host) -> Results:
        asked.append(one)
        failed = [{"name": "other", "error": "trapped"}] if len(asked) == 1 else []
        return Results("run.json", "NVIDIA H100", (record({FIRST: times(100), LESS: times(95)}), *failed))

    monkeypatch.setattr(artifact_store, "dsl_version", lambda: None)
    monkeypatch.setattr(session.Session, "run", run)
    monkeypatch.setattr(Host, "find", Host.typical)
    result = runner.invoke(app, ["tune", "--preset", "flash", "--tokens", "512", "--tables", str(tmp_path)])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.output
    assert asked[0].variants and asked[0].points == [POINT]
    result = runner.invoke(app, ["tune", "--ranks", "2", "--experts-per-rank", "32", "--remote", "0.75", "--tables", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert {one.remote for one in asked[1].points} == {0.75}
    assert [one.us for one in Table.read("NVIDIA H100", tmp_path).entries] == [95.0]
