"""Parts of the benchmark that need no GPU: points, roofline, jobs that fail or hang, the report."""

import json
from argparse import ArgumentParser
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from typer.main import get_command
from typer.testing import CliRunner

import failing_worker
from megamoe_dsl.arch import SM90, SM100
from megamoe_dsl.bench import host
from megamoe_dsl.bench import point as point_module
from megamoe_dsl.bench.host import Host, HostError
from megamoe_dsl.bench.point import Point, points_of, summarize
from megamoe_dsl.bench.process_group import RankWorker, run_jobs
from megamoe_dsl.bench.results import Results, are_of_layers, packages, passed, timed_row, without_folders
from megamoe_dsl.bench.session import Session
from megamoe_dsl.cases import random_inputs
from megamoe_dsl.cli.app import app
from megamoe_dsl.kernels.moe.roofline import Load, bound_of, measured_gpu
from megamoe_dsl.options.option import options_of
from megamoe_dsl.options.points import BenchOptions, PointOptions, TuneOptions
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.target import Target
from script_options import add_options, read_options


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """Sessions that commands ask for, on a host with eight GPUs; none is run."""
    found: list[Session] = []

    def run(session: Session, host: Host) -> Results:
        host.check(session.points)
        found.append(session)
        return Results("run.json", "none", ())

    monkeypatch.setattr(Host, "find", Host.typical)
    monkeypatch.setattr(Session, "run", run)
    return found


def test_points_of_the_command_line(asked: list[Session]) -> None:
    options = ["--preset", "flash,pro", "--tokens", "8,64", "--ranks", "2,8", "--artifacts", "kernels", "--variants"]
    assert CliRunner().invoke(app, ["bench", *options]).exit_code == 0
    (found,) = asked
    assert [one.name for one in found.points][:3] == ["flash EP2 M=8", "flash EP2 M=64", "pro EP2 M=8"]
    assert len(found.points) == 8 and found.variants and not found.trace and found.graphs
    assert CliRunner().invoke(app, ["bench", "--no-graphs", "--watchdog-ms", "1"]).exit_code == 0
    assert not asked[1].graphs and not asked[1].variants and asked[1].watchdog_ns == 1_000_000


BAD = [
    ("--preset=flush", "--preset = 'flush': must be one of flash, pro"),
    ("--tokens=8,many", "--tokens = '8,many': must be numbers separated by commas"),
    ("--tokens=-1", "--tokens = -1: must be at least 0"),
    ("--tokens=99999999", "--tokens = 99999999: must be less than 2^27 / 48: pool rows are counted in 32 bits"),
    ("--ranks=7", "--ranks = 7: must be a divisor of 256, the number of experts"),
    ("--ranks=0", "--ranks = 0: must be at least 1"),
    ("--remote=1.5", "--remote = 1.5: must be None, or between 0 and 1"),
    ("--watchdog-ms=0", "--watchdog-ms = 0: must be at least 1"),
    (f"--out={__file__}", f"--out = {__file__!r}: must be a folder that can be written ("),
    ("--hidden=512", "--intermediate = None: must be given, or taken from a --preset"),
    ("--hidden=500 --preset=flash", "--hidden = 500: must be a multiple of 32"),
    ("--hidden=512 --intermediate=256 --experts=8 --topk=9", "--topk = 9: must be at most --experts = 8"),
    ("--experts=64 --experts-per-rank=8", "--experts-per-rank = 8: must be left out with --experts"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[options for options, _ in BAD])
def test_bad_options_are_named_as_typed_before_gpus_are_looked_for(options: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "local_target", lambda: pytest.fail("looked for GPUs"))
    result = CliRunner().invoke(app, ["bench", *options.split()])
    assert result.exit_code == 2
    assert f"error: {message}" in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_more_ranks_than_gpus_are_refused(asked: list[Session]) -> None:
    result = CliRunner().invoke(app, ["bench", "--ranks", "16"])
    assert (result.exit_code, asked) == (2, [])
    assert result.stderr == "error: --ranks = 16: must be at most 8, the GPUs of this host\n"


@pytest.mark.parametrize(("kind", "command"), [(BenchOptions, "bench"), (TuneOptions, "tune")])
def test_both_command_lines_have_the_declared_options(kind: type, command: str) -> None:
    declared = {one.flag: (one.default, one.text) for one in options_of(kind)}
    parser = ArgumentParser()
    add_options(parser.add_argument, kind)
    standard = {one.option_strings[0]: one for one in parser._actions if one.dest != "help"}
    typed = {one.opts[0]: one for one in get_command(app).commands[command].params if one.opts[0] in declared}
    assert standard.keys() == declared.keys() == typed.keys()
    for flag, (default, text) in declared.items():
        assert (standard[flag].default, typed[flag].default, typed[flag].help) == (default, default, text)
        assert str(standard[flag].help).startswith(text)
    assert read_options(kind, parser.parse_args([])) == kind()


def test_a_shape_of_ones_own(asked: list[Session]) -> None:
    """Its points have a name, carry the shape into records, and are read back from there."""
    shape = ["--hidden", "7168", "--intermediate", "2048", "--experts", "384", "--topk", "8"]
    assert CliRunner().invoke(app, ["bench", *shape, "--tokens", "8"]).exit_code == 0
    (point,) = asked[0].points
    assert point.name == "H7168 I2048 E384 top8 EP8 M=8"
    assert (point.problem.hidden, point.problem.intermediate, point.problem.num_experts, point.problem.topk) == (7168, 2048, 384, 8)
    assert Point(**json.loads(json.dumps(asdict(point)))) == point
    assert are_of_layers([{"name": "a", "variants": {}, "point": asdict(point)}])
    with pytest.raises(ProblemError, match="intermediate = None: must be given"):
        are_of_layers([{"name": "a", "variants": {}, "point": {"preset": None, "tokens": 8, "ranks": 8, "hidden": 7168}}])
    (coded,) = points_of(PointOptions(preset="flash", tokens="8", combine="e4m3"))
    assert coded.name == "flash EP8 combine=e4m3 M=8" and coded.problem.combine == "e4m3" and coded.layer == Point("flash", 8, 8).layer
    assert Point(**json.loads(json.dumps(asdict(coded)))) == coded
    replaced = points_of(PointOptions(preset="flash", topk=8, tokens="8", experts_per_rank=4))
    assert [one.name for one in replaced] == ["flash top8 El4 EP8 M=8"]
    assert (replaced[0].problem.hidden, replaced[0].problem.topk, replaced[0].problem.num_experts) == (4096, 8, 32)
    assert [one.preset for one in points_of(TuneOptions(tokens="1"))] == ["flash", "pro"]


def test_a_host_without_gpus_is_told_before_anything_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "local_target", lambda: None)
    result = CliRunner().invoke(app, ["bench", "--artifacts", str(tmp_path / "kernels"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "GPUs = 0: must be GPUs of sm_90a or sm_100a; without any" in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_hosts_gpus_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An odd SM has no partner in a cluster."""
    monkeypatch.setattr(host, "local_target", lambda: Target(SM90, 115, "NVIDIA H100 PCIe"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Host.find() == Host("NVIDIA H100 PCIe", 114, 2)
    monkeypatch.setattr(host, "local_target", lambda: Target.typical("sm_100a"))
    assert Host.find() == Host("NVIDIA B200", 148, 2, SM100) and Host.find().target == Target.typical("sm_100a")
    monkeypatch.setattr(host, "local_target", lambda: Target(replace(SM90, name="sm_120a"), 132))
    with pytest.raises(HostError, match="must be GPUs of sm_90a or sm_100a"):
        Host.find()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pro:512=/a/ncu/pro_512", "pro:512=pro_512"),
        ('  File "/a/b/x.py", line 66', '  File "x.py", line 66'),
        ("--out=/b", "--out=b"),
        ("/usr/bin/python3 /a/b/validate.py x/y", "python3 validate.py x/y"),
        ("launches / graph, 0.9/1.0 GB/s, ./a/b ../c/d, https://a.b/c", "launches / graph, 0.9/1.0 GB/s, ./a/b ../c/d, https://a.b/c"),
    ],
)
def test_of_absolute_paths_the_last_name_is_told(text: str, told: str) -> None:
    assert without_folders(text) == told


def test_ceilings_of_an_unknown_gpu_say_whose_they_are() -> None:
    assert measured_gpu("NVIDIA H200") == "NVIDIA H200" == measured_gpu("NVIDIA H20")
    assert packages(None) == {}


def test_a_wrong_variant_is_not_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    found = record(200.0, 0)
    fast = record(100.0, 1)["variants"]["block_m=8"]
    found["variants"]["block_m=16"] = fast
    found["slowest_rank"] = {"bound_us": 90.0, "bound_by": "hbm"}
    summarize(found, Point("flash", 8, 8))
    assert (found["best"]["variant"], found["best"]["us"]) == ("block_m=8", 200.0)


def test_a_share_of_a_layer_on_one_rank() -> None:
    problem = Point("flash", 64, 1, experts_per_rank=32).problem
    assert (problem.num_experts, problem.num_ranks, problem.max_tokens_per_rank) == (32, 1, 64)


def test_work_of_the_published_table() -> None:
    """Flash at 512 tokens on eight ranks: 3072 pairs of 6 * 4096 * 2048 FLOP, all 32 local experts, seven eighths of x and y over
    NVLink."""
    work = bound_of(Point("flash", 512, 8).problem, Point("flash", 512, 8).load)
    assert work.flop == 3072 * 6 * 4096 * 2048
    assert work.hbm_bytes == pytest.approx(32 * 3 * 4096 * 2048 + 3072 * (3 * 4096 + 2 * 2048), rel=1e-6)
    assert work.nvlink_bytes == 3072 * 7 / 8 * 4096 * 3, "tokens one way, results the other"
    assert work.bound_by == "hbm" and work.bound_us == pytest.approx(196.7, abs=0.1)


def test_work_of_a_rank_that_routing_favors() -> None:
    """Twice the tokens are twice the FLOP; weights are read of the experts that have tokens."""
    problem, expected = Point("flash", 8, 8).problem, Point("flash", 8, 8).load
    work = bound_of(problem, Load(received=96, touched=20, remote=7 / 8))
    assert work.flop == 2 * bound_of(problem, expected).flop
    assert work.hbm_bytes == 20 * 3 * 4096 * 2048 + 96 * (3 * 4096 + 2 * 2048)
    assert expected.received == 48 and 24 < expected.touched < 26


def test_bf16_takes_twice_the_time_of_its_flop() -> None:
    point = Point("flash", 512, 8)
    fp8, bf16 = (bound_of(replace(point.problem, recipe=recipe), point.load) for recipe in ("fp8xfp8", "bf16xbf16"))
    assert (bf16.flop, bf16.flop_us) == (fp8.flop, 2 * fp8.flop_us) and bf16.hbm_bytes > 1.9 * fp8.hbm_bytes


def test_figures_of_the_fastest_that_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the point's recipe; where none is right, of the fastest."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    times = {"block_m=8": (True, 100.0, 90.0), "block_m=16": (False, 50.0, None), "fp8xmxfp4 block_m=8": (True, 10.0, None)}
    variants = {
        name: {"check": {"passed": ok}, "us": {"median": us}, "graph_us": graph and {"median": graph}}
        for name, (ok, us, graph) in times.items()
    }
    found: dict[str, Any] = {
        "variants": variants,
        "slowest_rank": {"bound_us": 80.0},
    }
    point_module.summarize(found, Point("flash", 512, 8))
    work, best = found["work"], found["best"]
    assert work == {name: one if isinstance(one, str) else pytest.approx(one) for name, one in WORK.items()}
    figures = {"us": 100.0, "graph_us": 90.0, "fraction_of_slowest_rank": 0.8}
    rates = {"tflops_per_rank": work["flop"], "hbm_tb_per_s": work["hbm_bytes"]}
    figures |= {name: value / 100 / 1e6 for name, value in rates.items()}
    figures |= {"nvlink_gb_per_s": work["nvlink_bytes"] / 100 / 1e3, "fraction_of_ceiling": work["bound_us"] / 100}
    assert best == pytest.approx({**figures, "variant": "block_m=8"})
    variants["block_m=8"]["check"]["passed"] = False
    point_module.summarize(found, Point("flash", 512, 8))
    assert (found["best"]["variant"], found["best"]["graph_us"]) == ("block_m=16", None)


WORK = {
    "flop": 1.546188227e11,
    "hbm_bytes": 855638016,
    "nvlink_bytes": 33030144,
    "flop_us": 129.9317837,
    "hbm_us": 196.6983945,
    "nvlink_us": 88.79070968,
    "bound_us": 196.6983945,
    "bound_by": "hbm",
}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"intermediate": 512, "experts": 8, "topk": 2}, "hidden = None: must be given, or taken from a --preset"),
        ({"hidden": 1024}, "intermediate = None: must be given, or taken from a --preset"),
        ({"hidden": 1024, "intermediate": 512, "topk": 2}, "experts = None: must be given, or taken from a --preset"),
        ({"hidden": 1024, "experts_per_rank": 4}, "intermediate = None: must be given, or taken from a --preset"),
        ({"experts": 16, "experts_per_rank": 2}, "experts_per_rank = 2: must be left out with --experts"),
        ({"preset": "flash", "ranks": "8,3"}, "ranks = 3: must be a divisor of 256, the number of experts"),
        ({"preset": "flash,flush"}, "preset = 'flush': must be "),
        ({"preset": ""}, "preset = '': must be one of flash, pro"),
        ({"combine": ""}, "combine = '': must be bf16 or e4m3"),
        ({"recipe": ""}, "recipe = '': must be one of "),
        ({"experts_per_rank": 0}, "num_experts = 0: must be a positive integer"),
        ({"preset": "flash", "topk": 0}, "topk = 0: must be a positive integer"),
        ({"ranks": ""}, "ranks = '': must be numbers separated by commas"),
        ({"ranks": "0"}, "ranks = 0: must be at least 1"),
    ],
)
def test_points_that_are_none_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        points_of(PointOptions(tokens="8", **given))
    (share,) = points_of(PointOptions(tokens="8", ranks="3", preset="flash", experts_per_rank=4))
    assert share.problem.num_experts == 12, "no share of the preset's 256"
    (whole,) = points_of(PointOptions(tokens="8", ranks="2", hidden=1024, intermediate=512, topk=2, experts_per_rank=4))
    assert whole.problem.num_experts == 8


def test_two_ranks_can_have_the_nvlink_traffic_of_eight() -> None:
    eight, two = Point("flash", 512, 8), Point("flash", 512, 2, experts_per_rank=32, remote=7 / 8)
    assert two.name == "flash El32 EP2 R0.875 M=512"
    assert bound_of(two.problem, two.load).nvlink_bytes == bound_of(eight.problem, eight.load).nvlink_bytes
    for rank in range(2):
        idx = random_inputs(two.problem, rank, 512, 1, remote=two.remote).topk_idx
        assert ((idx // 32 != rank).double().mean() - 7 / 8).abs() < 0.03


@pytest.mark.parametrize(("ranks", "remote"), [("1", 0.5), ("2", 0.0), ("2", 1.0), ("2", -1.0)])
def test_a_remote_fraction_needs_other_ranks_and_both_kinds(ranks: str, remote: float) -> None:
    with pytest.raises(ProblemError, match=f"remote = {remote}: must be None, or between 0 and 1"):
        points_of(PointOptions(tokens="8", ranks=ranks), remote)


def test_a_remote_fraction_needs_experts_enough() -> None:
    with pytest.raises(ProblemError, match=r"remote = 0\.5: must be None with fewer than 4 topk = 24 experts per rank"):
        points_of(PointOptions(tokens="8", ranks="2", experts_per_rank=23), 0.5)
    assert [point.remote for point in points_of(PointOptions(tokens="8", ranks="2", experts_per_rank=24), 0.5)] == [0.5]


def test_a_remote_fraction_comes_from_the_command_line(asked: list[Session]) -> None:
    for remote in ([], ["--remote", "0.75"]):
        assert CliRunner().invoke(app, ["bench", "--ranks", "2", *remote]).exit_code == 0
    assert [{point.remote for point in one.points} for one in asked] == [{None}, {0.75}]


def test_a_point_draws_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of this process's rank, routed with its remote fraction."""
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(point_module, "random_inputs", lambda *given, **options: (given, options))
    point = Point("flash", 9, 2, experts_per_rank=32, remote=0.75)
    assert point.draw(5) == ((point.problem, 1, 9, 5, "cuda"), {"remote": 0.75})


@pytest.mark.usefixtures("cpu_group")
def test_a_failed_or_hanging_job_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megamoe_dsl.bench.process_group.GRACE_S", 0.5)
    monkeypatch.setattr("megamoe_dsl.bench.process_group.MARGIN_S", 0.5)
    seen: list[tuple[Any, dict[str, Any]]] = []
    jobs = [1, "die", 2, "hang", "exit", "wait", 3]
    run_jobs(RankWorker(failing_worker.work, 2), jobs, 2.0, lambda job, record: seen.append((job, record)), 0.5)
    assert [job for job, _ in seen] == jobs
    records = dict(seen)
    assert records[1] == {"value": 1} and records[2] == {"value": 2} and records[3] == {"value": 3}
    assert records["die"]["error"] == "rank 1: ValueError: broken"
    assert records["hang"]["error"].startswith("no result within")
    assert records["exit"]["error"] == "rank 0: ended with exit code 3"
    assert records["wait"]["error"] == "rank 0: ended with exit code 3; rank 1: TimeoutError: waited"


def record(us: float, violations: int) -> dict[str, Any]:
    check = {"violations": violations, "worst": 0.5, "same_bits": 1.0, "passed": not violations}
    times = {"median": us, "low": us, "high": us}
    return {
        "name": "flash EP8 M=8",
        "symmetric_bytes": 2**20,
        "variants": {"block_m=8": {"check": check, "us": times, "graph_us": times}},
        "work": {"flop": 1e9, "hbm_bytes": 4e6 * us, "nvlink_bytes": 3e5 * us, "bound_us": us / 2, "bound_by": "hbm"},
        "slowest_rank": {"bound_us": 0.75 * us, "bound_by": "flop"},
        "best": {"variant": "block_m=8"},
    }


def test_report_and_verdict() -> None:
    good, bad = record(100.0, 0), record(100.0, 1)
    assert passed(good) and not passed(bad) and not passed({"error": "x"})
    times, limits = "100.0 100.0 10.0", "50 hbm 0.500 75 flop 0.750 4.00 300"
    assert " ".join(timed_row(good).split()) == f"flash EP8 M=8 {times} {limits} 1 ok 0.50 1.0000 block_m=8"
    assert "WRONG" in timed_row(bad)
    no_graph = {**good["variants"]["block_m=8"], "graph_us": None}
    row = " ".join(timed_row({**good, "variants": {"block_m=8": no_graph}}).split())
    assert row.startswith("flash EP8 M=8 100.0 - 10.0 ")
    good["variants"]["block_m=16"] = {"check": None, "us": {"median": 90.0}, "graph_us": None}
    good["variants"]["block_m=4"] = {"check": None, "us": {"median": 400.0}, "graph_us": None}
    assert timed_row(good).splitlines()[2].endswith(" block_m=4"), "the slowest last"
    del good["variants"]["block_m=4"]
    fastest, chosen = (" ".join(one.split()) for one in timed_row(good).splitlines())
    assert fastest == "90.0 - 11.1 50 hbm 0.556 75 flop 0.833 4.44 333 1 not checked block_m=16"
    assert chosen.startswith("flash EP8 M=8 100.0 100.0 10.0 ") and chosen.endswith(" 300 1 ok 0.50 1.0000 block_m=8")
