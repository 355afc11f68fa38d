"""Predictions over nodes: rows by formula, what limits, and the command."""

from unittest.mock import patch

import pytest

import predict
from megamoe_dsl.presets import preset
from megamoe_dsl.problem import Problem, ProblemError
from prediction.calibration import find_gpu
from prediction.nodes import NodePrediction, Spread, bytes_of_a_row, makespan

SMALL = ["--hidden", "1024", "--intermediate", "512", "--experts", "64", "--topk", "8", "--ranks", "2", "--tokens", "8"]
DEEPSEEK = preset("deepseek-v3").problem(1, num_ranks=8)
Capture = pytest.CaptureFixture[str]


def test_rows_of_a_token() -> None:
    """Of DeepSeek-V3, 8 of 256 experts: of four nodes one holds none with (192 choose 8) / (256 choose 8)."""
    free = Spread.of(DEEPSEEK, 4, None)
    absent = 1.0
    for drawn in range(8):
        absent *= (192 - drawn) / (256 - drawn)
    assert free.nodes == pytest.approx(4 * (1 - absent), rel=0.01)
    assert free.away_nodes == pytest.approx(3 * (1 - absent), rel=0.02) and free.away_experts == pytest.approx(6, rel=0.02)
    limited = Spread.of(DEEPSEEK, 8, 4)
    assert limited.nodes <= 4 and limited.away_experts == pytest.approx(7, rel=0.02)
    assert limited.away_nodes < limited.away_ranks < limited.away_experts
    assert Spread.of(DEEPSEEK, 1, None).away_nodes == 0
    for nodes, group_limit in ((3, None), (64, None), (4, 9), (4, 0)):
        with pytest.raises(ProblemError, match=r"nodes|group_limit"):
            Spread.of(DEEPSEEK, nodes, group_limit)


def test_experts_of_a_limited_number_of_groups_are_of_as_many_nodes() -> None:
    """Of 8 nodes, a group each, a token needs two: one other than its own node in a quarter of all cases, else two."""
    found = Spread.of(DEEPSEEK, 8, 2)
    assert found.nodes == pytest.approx(2, abs=0.05) and found.away_nodes == pytest.approx(1.75, abs=0.05)


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


def test_longer_launches_and_rows_are_cut_into_chunks() -> None:
    layer, gpu = Problem(1024, 512, 64, 8, 2, 4096, recipe="fp8xfp8"), find_gpu("H200")
    few, many = (NodePrediction.of(layer, tokens, 4, 400, gpu, None) for tokens in (8, 4096))
    assert few.chunks == 1 < many.chunks and many.us < many.network_us + many.launch_us


def test_a_node_alone_waits_for_no_network() -> None:
    alone = NodePrediction.of(Problem(1024, 512, 64, 8, 2, 8, recipe="fp8xfp8"), 8, 1, 400, find_gpu("H200"), None)
    assert (alone.network_us, alone.sent, alone.chunks) == (0, 0, 1) and alone.us == alone.launch_us


def test_a_network_moves_gigabits_after_its_latency() -> None:
    """Of counts, of rows and of results, 30 us each; 100 Gb/s are 12,500 bytes a microsecond."""
    found = NodePrediction.of(Problem(1024, 512, 64, 8, 2, 8, recipe="fp8xfp8"), 8, 4, 100, find_gpu("H200"), None)
    assert found.network_us == pytest.approx(3 * 30 + found.sent / 12_500)


def said(capsys: Capture, words: str, code: int = 0) -> str:
    with patch("sys.argv", ["predict.py", *SMALL, *words.split()]), patch.dict("os.environ", COLUMNS="200"):
        assert predict.main() == code
    return " ".join("".join(capsys.readouterr()).split())


def test_the_command(capsys: Capture) -> None:
    found = said(capsys, "--nodes 2,4")
    assert " 2 H1024 I512 E64 top8 EP2 M=8 1 " in found
    assert " 4 H1024 I512 E64 top8 EP2 M=8 1 119 91 27 0.1 network 3.63 2.73 4.07 6.00" in found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--nodes 3", "--nodes = 3: must be such that 2 ranks each divide 64 experts"),
        ("--nodes 0", "--nodes = 0: must be at least 1"),
        ("--nodes=", "--nodes = '': must be numbers separated by commas"),
        ("--nodes 4 --network 0", "--network = 0: must be 1 or more Gb/s"),
        ("--nodes 4 --group-limit 9", "--group-limit = 9: must be 1 to 8 groups of 64 experts, with 8 experts or more"),
        ("--nodes 4 --group-limit 0", "--group-limit = 0: must be 1 to 8 groups of 64 experts, with 8 experts or more"),
        ("--nodes 4 --compare", "--compare = True: must be left out with --nodes"),
        ("--nodes 4 --trace x.json", "--trace = 'x.json': must be left out with --nodes"),
        ("--network 100", "--network = 100: must be left out with no --nodes"),
        ("--group-limit 4", "--group-limit = 4: must be left out with no --nodes"),
    ],
)
def test_what_does_not_go_over_nodes_is_named(words: str, message: str, capsys: Capture) -> None:
    assert said(capsys, words, code=2) == f"error: {message}"
