"""Runs of `megamoe bench` over layers, with stand-ins for ranks and for what is measured: which kernels, layers and records there are."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megamoe_dsl import choose
from megamoe_dsl.artifact import store as store_module
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.store import ArtifactError, ArtifactStore
from megamoe_dsl.bench import ep, process_group, session, variant
from megamoe_dsl.bench.ep import EpRun
from megamoe_dsl.bench.host import Host, HostError
from megamoe_dsl.bench.point import CurrentLayer, Point, name_of, slowest_rank
from megamoe_dsl.bench.process_group import RankWorker
from megamoe_dsl.bench.session import Session, alike
from megamoe_dsl.bench.variant import variant_name
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.target import Target
from megamoe_dsl.tuned import DEFAULT_GPU

HOST = Host(DEFAULT_GPU, 132, 8)
SHAPE: dict[str, Any] = {"hidden": 512, "intermediate": 256, "experts": 8, "topk": 2}
FEW, MANY, WIDE = Point(None, 8, 2, **SHAPE), Point(None, 64, 2, **SHAPE), Point(None, 8, 2, **{**SHAPE, "hidden": 1024})
FOUR = replace(FEW, ranks=4)
TWO_GPUS = Host(DEFAULT_GPU, 132, 2)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """Jobs run here, as rank 0; ranks and watchdog limits of the workers."""
    started: list[tuple[int, float]] = []

    def run_jobs(worker: Any, jobs: list[Any], limit_s: float, keep: Callable[[Any, dict[str, Any]], None], watchdog_s: float) -> None:
        started.append((worker.ranks, watchdog_s))
        worker.work(0, jobs, lambda index, record: keep(jobs[index], record))

    monkeypatch.setattr(session, "run_jobs", run_jobs)
    return started


def test_points_of_one_shape_share_weights_and_one_without_a_kernel_costs_no_other(
    in_process: list[tuple[int, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Problem] = []

    def configs(store: Any, point: Point, *_: Any) -> list[Any]:
        if point == MANY:
            raise ValueError("no kernel")
        return [point.name]

    def record(point: Point, layer: Any, store: ArtifactStore, configs: list[Any], *limits: Any) -> dict[str, Any]:
        assert store.folder == tmp_path
        return {"layer": layer, "configs": configs, "point": point.name, "watchdog": limits[0]}

    monkeypatch.setattr(session, "configs_of", configs)
    monkeypatch.setattr(session, "measure_point", record)
    monkeypatch.setattr(session, "timed_row", lambda one: "")
    monkeypatch.setattr(session, "Layer", lambda problem: made.append(problem) or len(made))
    points = FEW, replace(FEW, tokens=16), MANY, WIDE, FOUR
    found = Session(points, tmp_path, tmp_path, watchdog_ms=7).run(HOST)
    assert in_process == [(2, 0.007), (4, 0.007)]
    records = {one["name"]: one for one in found.records}
    assert len(records) == 5 and records[MANY.name]["error"] == "ValueError: no kernel"
    assert [records[one.name]["layer"] for one in (FEW, replace(FEW, tokens=16), WIDE, FOUR)] == [1, 1, 2, 3]
    assert {(one["point"], one["watchdog"]) for one in records.values() if "layer" in one} == {
        (name, 7_000_000) for name in records.keys() - {MANY.name}
    }
    assert records[WIDE.name]["configs"] == [WIDE.name]
    assert found.name.startswith("mega_moe_sm90-time") and len(json.loads((tmp_path / found.name).read_text())["records"]) == 5


@pytest.mark.parametrize("trace", [False, True])
def test_a_run_of_halves_times_or_traces(
    trace: bool, in_process: list[tuple[int, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says in a line what it found."""
    activities = {"pull": {"us": 2.0, "spans": 3.0, "first": 0.0, "last": 4.0}}
    of_trace = {"traced": {half: {"trace": {"loader": activities}, "launch_us": 8.0} for half in ("dispatch", "combine")}}
    of_times = {"us": {"dispatch": {"median": 7.4}}, "differing": {"combine": 1}, "dispatch_alone_us": {"median": 3.2}}
    layers: list[Any] = []
    compiled: list[Any] = []
    monkeypatch.setattr(session, "Layer", lambda problem: problem)
    monkeypatch.setattr(ep, "dsl_version", lambda: "4")
    monkeypatch.setattr(ep, "compile_ahead", lambda configs, *_: compiled.extend(configs))
    monkeypatch.setattr(ep, "ep_point", lambda point, layer, *_: layers.append((point, layer)) or of_times)
    monkeypatch.setattr(ep, "trace_ep_point", lambda point, layer, *_: layers.append((point, layer)) or of_trace)
    run = EpRun((FEW, MANY), tmp_path, tmp_path, trace=trace, watchdog_ms=7)
    found = run.run(HOST)
    assert in_process == [(2, 0.007)] and compiled == run.configs(HOST)
    assert layers == [(one, FEW.problem) for one in (FEW, MANY)]
    monkeypatch.setattr(ep, "dsl_version", lambda: None)
    of_times["differing"] = {}
    assert len(replace(run, points=(FEW,)).run(HOST).records) == 1 and compiled == run.configs(HOST), "kernels are made where the DSL is"
    assert [run.right(one) for one in found.records] == [trace, trace]  # other bits than the chosen kernel's are wrong
    lines = capsys.readouterr().out
    assert ("loader" in lines and "0.250" in lines and f"{FEW.name} dispatch: 8.0 us from the first" in lines) == trace
    times = f"{FEW.name}: dispatch 7 us, dispatch alone 3 us; NOT THE SAME BITS: {{'combine': 1}}"
    assert (times in lines) == (not trace) and lines.count("NOT THE SAME") == 2 * (not trace), "of the first run alone"


class Ended(BaseException):
    """In place of a process's end."""


@pytest.mark.parametrize(("rank", "backend"), [(0, None), (1, None), (0, "gloo"), (1, "gloo")])
@pytest.mark.parametrize("error", [None, ValueError("x" * 2000), KeyboardInterrupt("stopped")])
def test_a_rank_joins_the_group_and_says_what_it_has_done(
    rank: int, backend: str | None, error: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 says that all have come, and what was measured; every rank says why it has failed. It ends without an orderly exit."""
    events, sent = list[Any](), list[Any]()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234", "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    for name in (*place, "NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", process_group.BACKEND_VARIABLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    if backend is not None:
        monkeypatch.setenv(process_group.BACKEND_VARIABLE, backend)

    def joined(*given: Any, **named: Any) -> None:
        assert place.items() <= os.environ.items() and os.environ["NCCL_NVLS_ENABLE"] == "0" and not sent
        events.append((*given, named))

    def ended(code: int) -> None:
        events.append(("exit", code))
        raise Ended

    def work(own: int, jobs: list[Any], report: Callable[[int, dict[str, Any]], None]) -> None:
        assert own == rank
        report(1, {"job": jobs[1]})
        if error is not None:
            raise error

    for name in ("barrier", "destroy_process_group"):
        monkeypatch.setattr(dist, name, lambda name=name: events.append(name))
    monkeypatch.setattr(dist, "init_process_group", joined)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: events.append(("device", device)))
    monkeypatch.setattr(os, "_exit", ended)
    pipe: Any = SimpleNamespace(send=sent.append)
    with pytest.raises(Ended):
        process_group._run_rank(rank, RankWorker(work, 2), 1234, ["a", "b"], pipe)
    of_group = {"rank": rank, "world_size": 2}
    come = [("gloo", of_group)] if backend else [("device", rank), ("nccl", {**of_group, "device_id": torch.device("cuda", rank)})]
    assert events == [*come, *(["barrier", "destroy_process_group"] if error is None else []), ("exit", error is not None)]
    said = [] if error is None else [f"{type(error).__name__}: {error}"[:1000]]
    assert sent == [*([None, (1, '{"job": "b"}')] if rank == 0 else []), *said]


def test_jobs_after_a_failure_are_run_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed one has a record of its error; ranks have so long to say what they wait for."""
    outcomes, seen, records = iter([(2, "rank 1: broken"), (0, "no result"), (2, None)]), list[Any](), list[Any]()

    def run_once(worker: Any, jobs: list[Any], limit_s: float, on_record: Any, grace_s: float) -> tuple[int, str | None]:
        seen.append((list(jobs), limit_s, grace_s))
        return next(outcomes)

    monkeypatch.setattr(process_group, "_run_once", run_once)
    process_group.run_jobs(RankWorker(print, 2), [*"abcdef"], 9.0, lambda job, one: records.append((job, one)), 2.0)
    assert seen == [([*jobs], 9.0, 2.0 + 5.0 + 3.0) for jobs in ("abcdef", "def", "ef")]
    assert records == [("c", {"error": "rank 1: broken"}), ("d", {"error": "no result"})]


@pytest.mark.parametrize("jobs", [[], ["a"]])
def test_no_jobs_start_no_process(jobs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that fails last starts no others."""
    monkeypatch.setattr(process_group, "_run_once", lambda *_: (0, "broken") if jobs else pytest.fail("started"))
    records = list[Any]()
    process_group.run_jobs(RankWorker(print, 2), jobs, 9.0, lambda job, one: records.append((job, one)), 2.0)
    assert records == [(job, {"error": "broken"}) for job in jobs]


def test_halves_are_run_in_one_recipe(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="watchdog_ms = 0: must be at least 1"):
        EpRun((FEW,), tmp_path, tmp_path, watchdog_ms=0)
    with pytest.raises(ProblemError, match=r"recipe = \['bf16xbf16', 'fp8xfp8'\]: must be one for all points"):
        EpRun((replace(FEW, recipe="fp8xfp8"), replace(FEW, recipe="bf16xbf16")), tmp_path, tmp_path)


def test_kernels_of_one_buffer_are_compared() -> None:
    problem = replace(FEW, recipe="fp8xfp8").problem
    config = choose(problem, Target.typical("sm_90a"), 8)
    assert alike(config, config.replace(block_m=config.block_m))
    for others in ({"num_sms": config.num_sms - 2}, {"trace": True}):
        assert not alike(config, config.replace(**others))
    point = replace(FEW, recipe="fp8xfp8")
    assert name_of(config, point) == variant_name(config)
    assert name_of(config, replace(point, recipe="fp8xmxfp4")) == f"fp8xfp8 {variant_name(config)}"


def test_the_last_shapes_weights_are_freed_first() -> None:
    alive: list[Any] = []
    layers: Any = CurrentLayer(lambda problem: alive.append(layers._layer) or SimpleNamespace(problem=problem))
    first = layers.of(FEW)
    assert layers.of(MANY) is first and layers.of(WIDE).problem == WIDE.problem and layers.of(FEW) is not first
    assert alive == [None, None, None]


def test_the_slowest_rank_is_that_of_the_largest_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(everyone: list[Any], own: dict[str, Any]) -> None:
        everyone[:] = [own, {**own, "bound_us": own["bound_us"] + 1.0, "name": "other"}]

    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: DEFAULT_GPU)
    found = slowest_rank(FEW, torch.tensor([3, 0, 5, 0]))
    assert found["name"] == "other" and list(found.values())[:2] == [8, 2]


def saved(store: ArtifactStore, *configs: Any) -> ArtifactStore:
    for config in configs:
        store.save(Artifact(config, ".entry", b"cubin", 1.0))
    return store


def test_kernels_of_the_same_tokens_are_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside 4-bit weights those of FP8 weights, beside FP8 and BF16 none of other recipes; without `variants` the chosen one alone."""
    monkeypatch.setattr(variant, "dsl_version", lambda: None)
    points = {recipe: replace(FEW, recipe=recipe) for recipe in ("fp8xmxfp4", "fp8xfp8", "bf16xbf16")}
    chosen = {recipe: choose(one.problem, HOST.target, 8) for recipe, one in points.items()}
    others = {recipe: one.replace(num_stages=one.num_stages - 1) for recipe, one in chosen.items()}
    store = saved(ArtifactStore(tmp_path), *chosen.values(), *others.values())
    fp8 = {chosen["fp8xfp8"], others["fp8xfp8"]}
    for recipe, more in {"fp8xmxfp4": fp8, "fp8xfp8": fp8, "bf16xbf16": set()}.items():
        found = session.configs_of(store, points[recipe], HOST, variants=True)
        assert found[0] == chosen[recipe] and len(found) == len(set(found))
        assert set(found) == {chosen[recipe], others[recipe], *more}
        assert session.configs_of(store, points[recipe], HOST, variants=False) == [chosen[recipe]]


def test_one_kernel_stands_in_for_the_chosen_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several where that cannot be made; a trace has a kernel of its own."""
    monkeypatch.setattr(variant, "dsl_version", lambda: None)
    monkeypatch.setattr(store_module, "find_spec", lambda name: None)
    chosen = choose(FEW.problem, HOST.target, 8)
    others = [chosen.replace(num_stages=stages) for stages in (2, 3)]
    store = saved(ArtifactStore(tmp_path), *others)
    (found,) = session.configs_of(store, FEW, HOST, variants=False)
    assert found in others and set(session.configs_of(store, FEW, HOST, variants=True)) == set(others)
    with pytest.raises(ArtifactError, match="no kernel for it"):
        session.configs_of(store, FEW, HOST, variants=False, trace=True)
    decoded = replace(FEW, recipe="fp8xmxfp4")
    assert set(session.configs_of(store, decoded, HOST, variants=True)) == set(others)
    with pytest.raises(ArtifactError, match="no kernel for it"):
        session.configs_of(store, decoded, HOST, variants=False)
    traced = chosen.replace(trace=True)
    assert session.configs_of(saved(store, chosen, traced), FEW, HOST, variants=True, trace=True) == [traced]


def test_kernels_of_other_sources_are_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = choose(FEW.problem, HOST.target, 8)
    other, store = chosen.replace(num_stages=2), ArtifactStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "source_digest", lambda kernel: "00000000")
        saved(store, other)
    saved(store, chosen)
    assert session.configs_of(store, FEW, HOST, variants=True) == [chosen]
    assert capsys.readouterr().out == f"made from other sources, left out: {variant_name(other)}\n"


def test_what_is_timed_at_a_point_is_what_the_session_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "measure_point", lambda *given: given)
    one, layers = Session((FEW,), tmp_path, tmp_path, graphs=False, watchdog_ms=1), SimpleNamespace(of=lambda point: "layer")
    asked: Any = (FEW, ["config"]), layers, "store", HOST
    assert one.measure(*asked) == (FEW, "layer", "store", ["config"], 1_000_000, False)


def test_too_few_gpus_are_told_before_anything_is_made(in_process: list[tuple[int, float]], tmp_path: Path) -> None:
    out = tmp_path / "out"
    for run in (Session((FOUR,), tmp_path, out).run, EpRun((FOUR,), tmp_path, out).run):
        with pytest.raises(HostError, match="ranks = 4: must be at most 2"):
            run(TWO_GPUS)
    assert in_process == [] and list(tmp_path.iterdir()) == []


def test_every_points_ranks_are_counted() -> None:
    for points in ((replace(FEW, ranks=9), FEW), (FEW, replace(FEW, ranks=9))):
        with pytest.raises(HostError, match="ranks = 9: must be at most 8, the GPUs of this host"):
            HOST.check(points)
    HOST.check((FEW, replace(FEW, ranks=8)))
