"""`megamoe predict`: figures, limits, comparisons, files, and errors of one line."""

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

from megamoe_dsl import Target, choose
from megamoe_dsl.arch import GPUS
from megamoe_dsl.bench.variant import neighbors
from megamoe_dsl.cli.app import app
from megamoe_dsl.cli.predict import PredictOptions, print_model
from megamoe_dsl.predict.calibration import CALIBRATED, calibration_of, find_gpu
from megamoe_dsl.predict.launch import KBlocks, RankLoad, combine_bytes, counted
from megamoe_dsl.predict.prediction import NO_PREFERENCE, Prediction, Subject, prefers
from megamoe_dsl.presets import preset
from megamoe_dsl.schedule.fused_moe import HostTable
from prediction_errors import recorded_load

SMALL = ["--hidden", "1024", "--intermediate", "512", "--experts", "16", "--topk", "2", "--ranks", "2"]


def predict(*arguments):
    return CliRunner().invoke(app, ["predict", *arguments])


@pytest.mark.parametrize("gpu", CALIBRATED)
def test_json(gpu):
    result = predict(*SMALL, "--gpu", gpu, "--tokens", "8,64", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    first, second = found["points"]
    assert found["gpu"] == CALIBRATED[gpu] and (first["tokens"], second["tokens"]) == (8, 64)
    assert 0 < first["us"] < second["us"] * 1.5 and first["config"]["block_m"] in (8, 16)
    assert all(0 <= share <= 1 for point in found["points"] for share in point["busy"].values())
    assert "start and end" in first["gains"] and all(0.005 <= share < 0.2 for share in first["gains"].values())


def test_channels_of_a_stage():
    packed = [*SMALL, "--gpu", "B200", "--recipe", "mxf4xmxf4", "--tokens", "8"]
    found = [json.loads(predict(*packed, "--block-k", block_k, "--quick", "--json").output)["points"][0] for block_k in ("128", "256")]
    assert [one["config"]["block_k"] for one in found] == [128, 256] and found[0]["us"] != found[1]["us"]
    assert not any(one["gains"] for one in found)
    compared = predict(*packed, "--compare")
    assert compared.exit_code == 0 and {"block_k=128", "block_k=256"} <= set(compared.output.split())


def test_a_configuration_is_for_the_gpu():
    """Not for the usual one of its architecture."""
    options = PredictOptions(hidden=1024, intermediate=512, experts=16, topk=2, ranks=2)
    assert options.config(replace(GPUS["NVIDIA H200"], num_sms=78), 8).num_sms == 78


def test_files(tmp_path):
    trace, svg = tmp_path / "trace.json", tmp_path / "launch.svg"
    result = predict(*SMALL, "--gpu", "B200", "--tokens", "8", "--quick", "--trace", str(trace), "--svg", str(svg))
    assert result.exit_code == 0, result.output
    spans = [one for one in json.loads(trace.read_text())["traceEvents"] if one["ph"] == "X"]
    assert {"count", "pull", "combine", "multiply Linear1", "epilogue Linear1"} <= {one["name"] for one in spans}
    assert all(one["dur"] > 0 for one in spans)
    assert "Predicted, not measured" in svg.read_text()


def words(*arguments):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["predict", *arguments])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_figures_as_text():
    saved = "start and end 7.4%, latency 3.7%, epilogues 1.8%, tensor cores 0.9%"
    assert f" 8 8 26.7 1.98 113 3% 5% 0% 2% {saved}" in words(*SMALL, "--tokens", "8")


def test_the_line_of_an_inspection_names_what_is_busiest():
    problem = PredictOptions(hidden=1024, intermediate=512, experts=16, topk=2, ranks=2).layer(GPUS["NVIDIA H200"].arch, 8)
    console = Console(file=StringIO(), width=60)
    print_model(console, choose(problem, Target.typical("sm_90a"), 8), 8)
    line = "The model of performance says 27 us for 8 tokens on every rank, NVIDIA H200, L2 5% busy (megamoe predict)\n"
    assert console.file.getvalue() == line


def test_choices_are_compared():
    found = words(*SMALL, "--tokens", "8", "--compare")
    for choice, said in (
        ("block_m=8 lookahead=8 num_stages=6", "26.7 chosen, no preference"),
        ("block_m=16 lookahead=8 num_stages=6", "27.2 no preference"),
        ("block_m=32 lookahead=8 num_stages=5", "28.4 +6.3%"),
    ):
        assert f"{choice} cluster=1 {said}" in found


@pytest.mark.parametrize("gpu", ["H200", "B200"])
def test_launches_and_compared_choices_are_drawn(tmp_path, gpu):
    launches, compared = tmp_path / "launches.svg", tmp_path / "compared.svg"
    assert predict(*SMALL, "--gpu", gpu, "--tokens", "8,16", "--quick", "--svg", str(launches)).exit_code == 0
    assert "Timelines of 2 launches" in launches.read_text() and "16 tokens a rank" in launches.read_text()
    assert predict(*SMALL, "--gpu", gpu, "--tokens", "8", "--compare", "--svg", str(compared)).exit_code == 0
    assert compared.read_text().count("block_m=") > 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "flash", "--gpu", "H20"], "error: --gpu = 'H20': must be one of "),
        (["--preset", "flash", "--tokens", "8,x"], "error: --tokens = '8,x': must be numbers separated by commas"),
        (["--preset", "flash", "--tokens", "0"], "error: --tokens = 0: must be at least 1"),
        (["--preset", "flash", "--block-m", "24"], "error: --block-m = 24: must be one of "),
        (["--preset", "flash", "--block-k", "256"], "error: --block-k = 256: must be left out with --kernel mega_moe for sm_90a"),
        (["--preset", "flash", "--tokens", "8,16", "--trace", "x.json"], "error: --tokens = '8,16': must be one number with "),
        (["--preset", "flash", "--tokens", "8,16", "--compare", "--svg", "x.svg"], "error: --tokens = '8,16': must be one number with "),
        (["--preset", "flash", "--gpu", "B200", "--pool-rows", "64"], "error: --pool-rows = 64: must be None or a multiple of 128"),
        (["--preset", "flash", "--compare", "--json"], "error: --json = True: must be left out with --compare"),
        (
            ["--preset", "flash", "--compare", "--tokens", "8", "--trace", "x.json"],
            "error: --trace = 'x.json': must be left out with --compare",
        ),
        (["--tokens", "8"], "error: --hidden = None: must be given"),
    ],
)
def test_errors(arguments, message):
    result = predict(*arguments)
    assert result.exit_code == 2 and message in result.output


@pytest.mark.parametrize("gpu", CALIBRATED)
def test_every_constant_has_a_source(gpu):
    calibration = calibration_of(find_gpu(gpu).name)
    sourced = [name for names in calibration.sources for name in names.split(", ")]
    assert sorted(sourced) == sorted({*vars(calibration), *calibration.kernel} - {"kernel", "sources"})
    assert find_gpu(CALIBRATED[gpu]) is find_gpu(gpu.lower()) is GPUS[CALIBRATED[gpu]]


def test_power_lowers_the_clock():
    problem = preset("flash").problem(512, num_ranks=2, num_experts=64, recipe="fp8xfp8")
    config, load = choose(problem, Target.typical("sm_90a"), 512), RankLoad.uniform(problem, 512)
    calibration = calibration_of("NVIDIA H200")
    free = Subject.of(config, load).launch(calibration, calibration.clock)
    predicted = Prediction.of(config, load, calibration)
    found = predicted.launched
    bytes_of_l2 = found.run.l2_bytes + calibration.l2_fill * (found.run.hbm_bytes + found.run.written)
    assert predicted.busy["L2"] == pytest.approx(bytes_of_l2 / (calibration.l2_per_clock * found.clock * 1e3) / found.us)
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
    found = [predict(*SMALL, "--tokens", "8", "--combine", element, "--quick", "--json") for element in ("bf16", "e4m3")]
    us, less = (json.loads(one.output)["points"][0]["us"] for one in found)
    assert less < us


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
