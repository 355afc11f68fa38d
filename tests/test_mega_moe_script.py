"""What bench/mega_moe.py can do beside `megamoe bench`, without a GPU: its options, and which records are right."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mega_moe
from mega_moe import ScriptSession, beside_row, main, right
from megamoe_dsl.bench import host
from megamoe_dsl.bench import session as session_module
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.results import Results
from soak import SETS, soak_row, token_counts
from test_bench import record


def test_a_soak_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ScriptSession] = []
    monkeypatch.setattr(Host, "find", Host.typical)
    monkeypatch.setattr(ScriptSession, "run", lambda session, host: asked.append(session) or Results("run.json", "none", ()))
    for more in ((), ("--check", "unfused")):
        with pytest.raises(SystemExit) as done:
            main(["--preset", "flash,pro", "--tokens", "8,64", "--ranks", "2,8", "--artifacts", "kernels", "--soak", "9", *more])
        assert done.value.code == 0 and len(asked[-1].points) == 8
    assert [(one.soak, one.unfused, one.baseline, one.trace) for one in asked] == [(9, False, None, False), (9, True, None, False)]


def session_of(folder: Path, **fields: Any) -> ScriptSession:
    return ScriptSession((), folder, folder, **fields)


def test_what_is_done_at_a_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the options that ask for it: a baseline is of the fused layer, whose records name it; a soak has neither, a trace no script's."""
    monkeypatch.setattr(mega_moe, "soak_point", lambda session, *given, **options: ("soak", given, options))
    monkeypatch.setattr(mega_moe, "time_beside", lambda session, *given, **options: ("time", given, options))
    monkeypatch.setattr(session_module, "trace_point", lambda session, *given: ("trace", given, {}))
    layers: Any = SimpleNamespace(of=lambda point: "layer")
    given = "point", "layer", "store", ["config"]
    for fields, kind, options in (
        ({}, "time", {"check": False}),
        ({"unfused": True}, "time", {"check": True}),
        ({"soak": 4}, "soak", {"launches": 4, "unfused": False}),
        ({"soak": 4, "unfused": True}, "soak", {"launches": 4, "unfused": True}),
        ({"trace": True}, "trace", {}),
    ):
        one: Any = session_of(tmp_path, **fields)
        assert one.measure(("point", ["config"]), layers, "store", None) == (kind, given, options)
        assert one.recorded("mega_moe_sm90").path.name.startswith(f"mega_moe_sm90-{kind}-")


def test_a_baseline_is_named_in_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And shares the layer's weights, but not in a soak or a trace."""
    named: list[Any] = []
    for module in (mega_moe, session_module):
        monkeypatch.setattr(module, "Recorded", lambda out, kind, *sites: named.append(sites))
    monkeypatch.setattr(mega_moe, "LayerBeside", lambda problem, site: site)
    monkeypatch.setattr(session_module, "Layer", lambda problem: "alone")
    problem: Any = None
    layers = []
    for fields in ({}, {"soak": 4}, {"trace": True}):
        one = session_of(tmp_path, baseline="site", **fields)
        one.recorded("")
        layers.append(one.layer(problem))
    assert named == [("site",), (), ()] and layers == ["site", "alone", "alone"]


def test_a_comparison_with_the_unfused_layer_needs_its_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compiled where the DSL is."""
    needed: list[Any] = []
    monkeypatch.setattr(session_module, "configs_of", lambda *_: ["a", "b"])
    monkeypatch.setattr(mega_moe, "stage_configs", lambda config: [f"{config}1", f"{config}2"])
    store: Any = SimpleNamespace(get=needed.append)
    given: Any = store, "point", "host"
    for unfused, dsl, stages in ((False, "4", []), (True, None, []), (True, "4", ["a1", "a2", "b1", "b2"])):
        monkeypatch.setattr(mega_moe, "dsl_version", lambda dsl=dsl: dsl)
        assert session_of(tmp_path, unfused=unfused).kernels(*given) == ["a", "b"]
        assert needed == stages


def test_a_baseline_is_timed_beside_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or its error is said; with a check, records say of each kernel how it agrees with the unfused layer."""
    entered = list[Any]()
    beside = SimpleNamespace(launches="its launches", enter=lambda record: entered.append(record))
    monkeypatch.setattr(mega_moe, "Beside", lambda point, baseline: beside if (point, baseline) == ("point", "theirs") else None)
    asked = list[Any]()
    monkeypatch.setattr(mega_moe, "measure_point", lambda *given: asked.append(given) or {"variants": {"a": {}, "b": {}}})
    agreement = SimpleNamespace(record=lambda: {"passed": True})
    monkeypatch.setattr(mega_moe, "compare_point", lambda *given: {"b": agreement})
    session: Any = SimpleNamespace(watchdog_ns=7, graphs=False)
    for error, check in ((None, False), ("no library", True)):
        layer: Any = SimpleNamespace(baseline=None if error else "theirs", baseline_error=error)
        found = mega_moe.time_beside(session, "point", layer, "store", ["configs"], check=check)  # type: ignore[arg-type]
        assert asked.pop() == ("point", layer, "store", ["configs"], 7, False, None if error else "its launches")
        variants = {"a": {}, "b": {"unfused": {"passed": True}} if check else {}}
        assert found == {"variants": variants} | ({"baseline_error": error} if error else {})
        assert entered == ([] if error else [found])
        entered.clear()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--soak=-3", "--soak = -3: must be 0 or a number of launches"),
        ("--baseline=nowhere", "--baseline = 'nowhere': must be a folder with unpacked wheels, deep_gemm among them"),
        ("--trace --soak=3", "--trace = True: must be False with a soak"),
        ("--check=reference", "--check = 'reference': must be unfused, or left out"),
        ("--check=unfused --trace", "--check = 'unfused': must be left out with a trace"),
        ("--soak=3 --remote=0.75 --ranks=2", "--remote = 0.75: must be None with a soak, which has routings of its own"),
        ("--tokens=-1", "--tokens = -1: must be at least 0"),
    ],
)
def test_bad_options_are_named_before_gpus_are_looked_for(
    options: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host, "local_target", lambda: pytest.fail("looked for GPUs"))
    with pytest.raises(SystemExit) as refused:
        main(options.split())
    assert refused.value.code == 2 and message in capsys.readouterr().err


def test_soak_has_full_empty_and_uneven_launches() -> None:
    counts = token_counts(8, 64)
    assert len(counts) == SETS and all(0 <= n <= 64 for one in counts for n in one)
    assert [64] * 8 in counts and [0] * 8 in counts
    assert any(0 in one and max(one) for one in counts)


def test_what_is_right() -> None:
    good = record(100.0, 0)
    variant = good["variants"]["block_m=8"]
    assert right(good) and not right(record(100.0, 1)) and not right({**good, "baseline_error": "no such library"})
    assert "no baseline: no such library" in beside_row({**good, "baseline_error": "no such library"})
    theirs = {"us": {"median": 200.0}, "graph_us": {"median": 300.0}, "symmetric_bytes": 2**21}
    shown = beside_row({**good, "baseline": theirs, "best": {**good["best"], "ratio": 2.0, "graph_ratio": 3.0}})
    assert shown.endswith(" baseline: 200.0 us, 2.000 times ours; as a graph 300.0 us, 3.000; 2 MiB")
    shown = beside_row({**good, "baseline": {**theirs, "graph_us": None}, "best": {**good["best"], "ratio": 2.0}})
    assert shown.endswith(" baseline: 200.0 us, 2.000 times ours; 2 MiB")
    for more, well in (
        ({"difference_to_baseline": 0.04}, True),
        ({"difference_to_baseline": 0.2}, False),
        ({"unfused": {"passed": False}}, False),
    ):
        assert right({**good, "variants": {"block_m=8": {**variant, **more}}}) is well
    soaked: dict[str, Any] = {"name": "flash", "soak": {"mismatches": 0, "wrong_sets": 0}}
    assert right(soaked) and "mismatches 0" in soak_row(soaked)
    assert not right({"name": "flash", "soak": {"mismatches": 1, "wrong_sets": 0}})
    assert right({"name": "flash", "soak": {**soaked["soak"], "unequal_to_unfused": 0}})
    assert not right({"name": "flash", "soak": {**soaked["soak"], "unequal_to_unfused": 3}})
