"""`python bench/predict.py`: figures, limits, comparisons, files, and errors of one line."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

import predict
from megamoe_dsl import Target, choose
from megamoe_dsl.arch import GPUS
from megamoe_dsl.bench.variant import neighbors
from megamoe_dsl.presets import preset
from megamoe_dsl.schedule.fused_moe import HostTable
from prediction.calibration import CALIBRATED, calibration_of, find_gpu
from prediction.launch import KBlocks, RankLoad, combine_bytes, counted
from prediction.prediction import NO_PREFERENCE, Subject, prefers
from prediction_errors import recorded_load

SMALL = ["--hidden", "1024", "--intermediate", "512", "--experts", "16", "--topk", "2", "--ranks", "2"]
Capture = pytest.CaptureFixture[str]


def said(capsys: Capture, *words: str, code: int = 0) -> str:
    """What `python bench/predict.py WORDS` prints, on one line."""
    with patch("sys.argv", ["predict.py", *words]), patch.dict("os.environ", COLUMNS="200"):
        ended = predict.main()
    printed = capsys.readouterr()
    assert ended == code, printed
    return " ".join((printed.err if code else printed.out).split())


@pytest.mark.parametrize("gpu", CALIBRATED)
def test_json(gpu: str, capsys: Capture) -> None:
    found = json.loads(said(capsys, *SMALL, "--gpu", gpu, "--tokens", "8,64", "--json"))
    first, second = found["points"]
    assert found["gpu"] == CALIBRATED[gpu] and (first["tokens"], second["tokens"]) == (8, 64)
    assert 0 < first["us"] < second["us"] * 1.5 and first["config"]["block_m"] in (8, 16)
    assert all(0 <= share <= 1 for point in found["points"] for share in point["busy"].values())
    assert "start and end" in first["gains"] and all(0.005 <= share < 0.2 for share in first["gains"].values())
    shorter = json.loads(said(capsys, *SMALL, "--gpu", gpu, "--tokens", "8", "--combine", "e4m3", "--json"))
    assert shorter["points"][0]["us"] < first["us"]


def test_channels_of_a_stage_are_compared(capsys: Capture) -> None:
    compared = said(capsys, *SMALL, "--gpu", "B200", "--recipe", "mxf4xmxf4", "--tokens", "8", "--compare")
    assert {"block_k=128", "block_k=256"} <= set(compared.split())


def test_a_launch_goes_to_files(tmp_path: Path, capsys: Capture) -> None:
    trace, svg = tmp_path / "trace.json", tmp_path / "launch.svg"
    said(capsys, *SMALL, "--gpu", "B200", "--tokens", "8", "--trace", str(trace), "--svg", str(svg))
    spans = [one for one in json.loads(trace.read_text())["traceEvents"] if one["ph"] == "X"]
    assert {"count", "pull", "combine", "multiply Linear1", "epilogue Linear1"} <= {one["name"] for one in spans}
    assert all(one["dur"] > 0 for one in spans)
    assert "Predicted, not measured" in svg.read_text()


def test_figures_as_text(capsys: Capture) -> None:
    saved = "start and end 7.4%, latency 3.7%, epilogues 1.8%, tensor cores 0.9%"
    assert f" M=8 8 26.7 1.98 113 3% 5% 0% 2% {saved}" in said(capsys, *SMALL, "--tokens", "8")


def test_choices_are_compared(capsys: Capture) -> None:
    found = said(capsys, *SMALL, "--tokens", "8", "--compare")
    for choice, text in (
        ("block_m=8 lookahead=8 num_stages=6", "26.7 chosen, no preference"),
        ("block_m=16 lookahead=8 num_stages=6", "27.2 no preference"),
        ("block_m=32 lookahead=8 num_stages=5", "28.4 +6.3%"),
    ):
        assert f"{choice} cluster=1 {text}" in found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--gpu H20", "--gpu = 'H20': must be one of H200, B200"),
        ("--tokens 8,x", "--tokens = '8,x': must be numbers separated by commas"),
        ("--tokens 0", "--tokens = 0: must be at least 1"),
        ("--tokens 8,16 --trace x.json", "--tokens = '8,16': must be of one point with --trace"),
        ("--gpu B200 --pool-rows 64", "--pool-rows = 64: must be None or a multiple of 128"),
        ("--compare --json", "--json = True: must be left out with --compare"),
        ("--tokens 8 --svg nowhere/x.svg", "--svg = 'nowhere/x.svg': must be in a folder that is there: nowhere is none"),
        ("--compare --tokens 8 --trace x.json", "--trace = 'x.json': must be left out with --compare"),
        ("--hidden 1024 --tokens 8", "--intermediate = None: must be given"),
        ("--recipe fp8xfp8 --gpu B200 --tokens 8", "--recipe = 'fp8xfp8': must be "),
    ],
)
def test_errors(words: str, message: str, capsys: Capture) -> None:
    assert said(capsys, *words.split(), code=2).startswith(f"error: {message}")


@pytest.mark.parametrize("gpu", CALIBRATED)
def test_every_constant_has_a_source(gpu):
    calibration = calibration_of(find_gpu(gpu).name)
    sourced = [name for names in calibration.sources for name in names.split(", ")]
    assert sorted(sourced) == sorted({*vars(calibration), *calibration.kernel} - {"kernel", "sources"})
    assert find_gpu(gpu) is GPUS[CALIBRATED[gpu]]


def test_power_lowers_the_clock():
    problem = preset("flash").problem(512, num_ranks=2, num_experts=64, recipe="fp8xfp8")
    config, load = choose(problem, Target.typical("sm_90a"), 512), RankLoad.uniform(problem, 512)
    calibration = calibration_of("NVIDIA H200")
    free = Subject.of(config, load).launch(calibration, calibration.clock)
    found = Subject.of(config, load).predict(calibration)
    bytes_of_l2 = found.run.l2_bytes + calibration.l2_fill * (found.run.hbm_bytes + found.run.written)
    assert found.busy["L2"] == pytest.approx(bytes_of_l2 / (calibration.l2_per_clock * found.clock * 1e3) / found.us)
    assert free.watts > calibration.power and found.clock < calibration.clock
    assert found.watts == pytest.approx(calibration.power, rel=0.01) and found.us > free.us


def test_choices_are_around_the_configuration():
    problem = preset("flash").problem(64, recipe="fp8xfp8")
    config = choose(problem, Target.typical("sm_90a"), 64)
    found = neighbors(config, 64, Target.typical("sm_90a"))
    assert config not in found and len(found) == len(set(found)) >= 5
    assert {config.block_m, *(one.block_m for one in found)} == {8, 16, 32, 128}
    ring = config.replace(pool_rows=1024)
    assert {one.pool_rows for one in neighbors(ring, 64, Target.typical("sm_90a"))} == {1024}


def test_results_of_eight_bits_take_less_traffic():
    """Of the last of them, y apart, half; a scale for 128 channels."""
    problem = preset("flash").problem(64, recipe="fp8xfp8")
    load = RankLoad.uniform(problem, 64)
    usual, coded = (combine_bytes(replace(problem, combine=element), load) for element in ("bf16", "e4m3"))
    values = 64 * 6 * 4096
    assert usual - coded == values * (1 - 1 / 128)


def test_k_blocks_and_tiles_that_are_not_whole_count():
    blocks = KBlocks.of(preset("gpt-oss-120b").problem(8))  # 2880 channels
    assert (blocks.fc1, blocks.fc2, blocks.fc1_n, blocks.fc2_n, blocks.experts) == (23, 23, 23, 12, 16)


def test_tokens_of_other_ranks_come_over_nvlink():
    """Not faster than it is, however many warps pull; those of this rank do not."""
    problem, calibration = preset("flash").problem(64, recipe="fp8xfp8"), replace(calibration_of("NVIDIA H200"), nvlink=1.0)
    load, blocks = RankLoad(64, (100, 28, *[0] * 30), 0.75), HostTable.of((100, 28), 128)
    pool = KBlocks.of(problem).pool(problem, load, blocks, calibration, 10_000, 1)
    assert (pool.pulled - counted(calibration, load)).tolist() == pytest.approx([100 * 4096 * 0.75, 128 * 4096 * 0.75])


def test_preference_needs_a_difference():
    assert prefers(100.0, 100 * (1 + NO_PREFERENCE)) is None and prefers(104.0, 100.0) is None
    assert prefers(100.0, 106.0) is True and prefers(106.0, 100.0) is False


def test_the_slowest_rank_reads_most_weights():
    """Another one of the eight gets 126 tokens, of 31 experts."""
    slowest = RankLoad.uniform(preset("flash").problem(16, recipe="fp8xfp8"), 16)
    assert (slowest.touched, slowest.received) == (32, 105)


def test_a_recorded_load_is_the_records():
    problem = preset("flash").problem(64, recipe="fp8xfp8", num_ranks=2, num_experts=64)
    load = recorded_load(problem, 8, received=50, touched=25, remote=0.875)
    assert (load.received, load.touched, len(load.counts)) == (50, 25, 32)
