"""Predictions over nodes: rows by formula, what limits, and the command."""

import json
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from megamoe_dsl.arch import SM90
from megamoe_dsl.cli.app import app
from megamoe_dsl.predict.calibration import calibration_of, find_gpu
from megamoe_dsl.predict.nodes import CHUNKS, USUAL, Network, NodePrediction, Spread, bytes_of_a_row, chunks_of, makespan
from megamoe_dsl.presets import preset
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.target import Target

SMALL = ["--hidden", "1024", "--intermediate", "512", "--experts", "64", "--topk", "8", "--ranks", "2"]


def test_rows_of_a_token() -> None:
    """Of DeepSeek-V3, 8 of 256 experts: of four nodes one holds none with (192 choose 8) / (256 choose 8)."""
    free = Spread.of(256, 8, 4, 8)
    absent = 1.0
    for drawn in range(8):
        absent *= (192 - drawn) / (256 - drawn)
    assert free.nodes == pytest.approx(4 * (1 - absent), rel=0.01)
    assert free.away_nodes == pytest.approx(3 * (1 - absent), rel=0.02) and free.away_experts == pytest.approx(6, rel=0.02)
    limited = Spread.of(256, 8, 8, 8, groups=8, group_limit=4)
    assert limited.nodes <= 4 and limited.away_experts == pytest.approx(7, rel=0.02)
    assert limited.away_nodes < limited.away_ranks < limited.away_experts
    assert Spread.of(256, 8, 1, 8).away_nodes == 0
    for fields in ({"nodes": 3}, {"nodes": 64}, {"groups": 8, "group_limit": 9}, {"groups": 64, "group_limit": 1}):
        with pytest.raises(ProblemError, match=r"nodes|group_limit"):
            Spread.of(**{"num_experts": 256, "topk": 8, "nodes": 4, "ranks": 8, **fields})


@pytest.mark.parametrize(
    ("recipe", "combine", "token", "results"),
    [
        ("fp8xfp8", "bf16", 7168 + 4 * 56, 2 * 7168),
        ("fp8xfp8", "e4m3", 7168 + 4 * 56, 7168 + 56),
        ("fp8xfp4", "bf16", 7168 + 224, 2 * 7168),
        ("mxf4xmxf4", "bf16", 3584 + 224, 2 * 7168),
        ("nvfp4xnvfp4", "bf16", 3584 + 448, 2 * 7168),
        ("bf16xbf16", "bf16", 2 * 7168, 2 * 7168),
    ],
)
def test_bytes_of_a_row(recipe: str, combine: str, token: int, results: int) -> None:
    """Values and their scales: FP32 of 128 channels, a byte of 32, or of 16; and 8 bytes for each of 8 experts."""
    assert bytes_of_a_row(preset("deepseek-v3").problem(128, recipe=recipe, combine=combine)) == (token + 8 * 8, results)


@pytest.mark.parametrize(
    ("chunks", "there", "launch", "back", "us"),
    [
        (1, 3, 5, 2, 10),
        (2, 3, 5, 2, 15),  # the launches are the limit
        (2, 9, 1, 9, 36),  # the network is
        (4, 6, 10, 6, 56),  # rows, three results and a last launch's: results wait for launches, rows for results
        (3, 1, 4, 2, 15),
        (3, 2, 3, 4, 19),  # rows of the third chunk wait for the first results
    ],
)
def test_chunks_overlap(chunks: int, there: float, launch: float, back: float, us: float) -> None:
    assert makespan(chunks, there, launch, back) == us


def test_a_network_moves_gigabits() -> None:
    assert Network(400.0, 10.0).us(50_000) == 1.0


def test_chunks_pay_where_launches_and_network_take_long() -> None:
    """A GPU that nobody calibrated is taken for one of its architecture; a host that is slow makes every chunk one too many."""
    problem = Problem(1024, 512, 64, 8, 8, 4096, recipe="fp8xfp8")
    assert chunks_of(problem, 2, 8, Target.typical("sm_90a")) == 1
    node, gpu = replace(problem, num_ranks=2), find_gpu("H200")
    found = {}
    for host in (0.0, 10_000.0):
        network = replace(USUAL, host_us=(0.0, host))
        found[host] = NodePrediction.of(node, 4096, 4, network, gpu, calibration_of(gpu.name), 1, 1)
    assert found[0.0].chunks in CHUNKS[1:] and found[10_000.0].chunks == 1 and found[10_000.0].limit == "host"
    assert chunks_of(problem, 2, 4096, Target(SM90, 132, "NVIDIA H100 80GB HBM3")) == chunks_of(problem, 2, 5000, Target.typical("sm_90a"))


def test_a_node_alone_waits_for_no_network() -> None:
    gpu = find_gpu("H200")
    alone = NodePrediction.of(Problem(1024, 512, 64, 8, 2, 8, recipe="fp8xfp8"), 8, 1, USUAL, gpu, calibration_of(gpu.name), 1, 1)
    assert (alone.network_us, alone.sent, alone.chunks) == (0, 0, 1) and alone.us == max(alone.launch_us, sum(USUAL.host_us))


def test_the_command() -> None:
    found = CliRunner().invoke(
        app, ["predict", *SMALL, "--nodes", "2,8", "--network", "400Gb", "--group-limit", "4", "--tokens", "8,256", "--json"]
    )
    assert found.exit_code == 0, found.output
    points = json.loads(found.output)["points"]
    assert [(one["nodes"], one["tokens"]) for one in points] == [(2, 8), (2, 256), (8, 8), (8, 256)]
    assert all(one["us"] >= max(one["network_us"], one["launch_us"]) * 0.999 for one in points)
    assert points[1]["sent"] == pytest.approx(points[0]["sent"] * 32) and points[2]["sent"] > points[0]["sent"]
    table = CliRunner().invoke(app, ["predict", *SMALL, "--nodes", "4", "--tokens", "8"])
    assert table.exit_code == 0
    assert " 4 8 1 119 91 27 0.1 network 3.63 2.73 4.07 6.00" in " ".join(table.output.split())
    near = CliRunner().invoke(app, ["predict", *SMALL, "--nodes", "4", "--tokens", "8", "--network-latency", "10", "--json"])
    far = CliRunner().invoke(app, ["predict", *SMALL, "--nodes", "4", "--tokens", "8", "--network-latency", "20", "--json"])
    times = [json.loads(one.output)["points"][0]["network_us"] for one in (near, far)]
    assert times[1] - times[0] == pytest.approx(30.0)  # of counts, rows and results


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--nodes 3", "--nodes = 3: must be such that 2 ranks each divide 64 experts"),
        ("--nodes 0", "--nodes = 0: must be at least 1"),
        ("--nodes=", "--nodes = '': must be numbers separated by commas"),
        *(
            (f"--nodes 4 --network={one}", f"--network = '{one}': must be gigabits a second, as in 400Gb")
            for one in ("fast", "0Gb", "-1Gb", "Gb", "", "\u00b2Gb", "1.5Gb")
        ),
        *(
            (f"--nodes 4 --network-latency={one}", f"--network-latency = {shown}: must be 0 or more microseconds")
            for one, shown in (("-1", "-1.0"), ("nan", "nan"), ("inf", "inf"))
        ),
        ("--nodes 4 --group-limit 9", "--group-limit = 9: must be between 1 and 8 groups, with 8 experts or more in them"),
        ("--nodes 4 --group-limit 0", "--group-limit = 0: must be between 1 and 8 groups"),
        ("--nodes 4 --groups 16 --group-limit 1", "--group-limit = 1: must be between 1 and 16 groups, with 8 experts or more in them"),
        *((f"--nodes 4 --groups={one} --group-limit 1", f"--groups = {one}: must be a divisor of 64 experts") for one in (0, -8, 3)),
        ("--nodes 4 --groups 4", "--groups = 4: must be left out with no --group-limit"),
        ("--nodes 4 --compare", "--compare = True: must be left out with --nodes"),
        ("--nodes 4 --svg x.svg", "--svg = 'x.svg': must be left out with --nodes"),
        ("--nodes 4 --trace x.json", "--trace = 'x.json': must be left out with --nodes"),
        ("--network 100Gb", "--network = '100Gb': must be left out with no --nodes"),
        ("--network-latency 0", "--network-latency = 0.0: must be left out with no --nodes"),
        ("--group-limit 4", "--group-limit = 4: must be left out with no --nodes"),
        ("--groups 4", "--groups = 4: must be left out with no --nodes"),
    ],
)
def test_what_does_not_go_over_nodes_is_named(arguments: str, message: str) -> None:
    refused = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, ["predict", *SMALL, "--tokens", "8", *arguments.split()])
    (line,) = refused.output.splitlines()
    assert refused.exit_code == 2 and line.startswith(f"error: {message}")


def point_of(*arguments: str) -> dict[str, Any]:
    found = CliRunner().invoke(app, ["predict", *SMALL, "--tokens", "8", "--nodes", "4", "--json", *arguments])
    (point,) = json.loads(found.output)["points"]
    return dict(point)


@pytest.mark.parametrize("network", ["400", "400Gb"])
def test_a_network_may_have_no_latency(network: str) -> None:
    point = point_of("--network", network, "--network-latency", "0")
    assert point["network_us"] == pytest.approx(point["sent"] / 50_000)  # bytes a microsecond


def test_experts_of_a_limited_number_of_groups_are_of_as_many_nodes() -> None:
    """Of 4 groups of 16 experts, a node's each, a token has two: with one other than its own node's, or two."""
    point = point_of("--groups", "4", "--group-limit", "2")
    assert point["spread"]["nodes"] == pytest.approx(2, abs=0.05) and point["spread"]["away_nodes"] == pytest.approx(1.5, abs=0.05)
