"""The weighing of a rowwise recipe (studies/weigh_rowwise.py): its arithmetic, the kernel without promotion, and the page."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import rowwise_recipe
import torch
import weigh_rowwise
from main_loop import MainLoop

from megamoe_dsl import quant, reference
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.bench.point import Point
from megamoe_dsl.cases import random_case
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.problem import Problem
from megamoe_dsl.reference import stages
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.simulated import SimulatedMoE
from sweep import rarely

ROOT = Path(weigh_rowwise.__file__).parents[1]
MOE = Problem(512, 256, 2, 1, 1, 24, recipe="fp8xfp8")
CONFIG = Sm90Config.choose(MOE, 24, num_sms=4, block_m=128)
PAIRS = Sm90Config.choose(replace(MOE, max_tokens_per_rank=300), 300, num_sms=4, block_m=128, cluster=2)


def nearest_e4m3(value: float) -> float:
    """By search over all codes; a tie goes to the even code."""
    codes = [c for c in range(256) if c & 0x7F != 0x7F]
    values = torch.tensor(codes, dtype=torch.uint8).view(torch.float8_e4m3fn).tolist()
    return min(zip(values, codes, strict=True), key=lambda one: (abs(one[0] - value), one[1] & 1))[0]


def by_hand(x: list[float], w: list[float]) -> float:
    """One output of a rowwise matmul with exact sums."""
    scales = [max(map(abs, one)) / 448 for one in (x, w)]
    codes = [[nearest_e4m3(v / scale) for v in one] for one, scale in zip((x, w), scales, strict=True)]
    return sum(a * b for a, b in zip(*codes, strict=True)) * scales[0] * scales[1]


def test_rowwise_matmul_by_hand() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(2, 32, generator=generator), torch.randn(3, 32, generator=generator)
    x[1] *= 1000  # a scale per token
    w[2] *= 0.01  # and one per output channel
    got = rowwise_recipe.rowwise_matmul(*rowwise_recipe.quantize_rows(x), *rowwise_recipe.quantize_rows(w), torch.float64)
    want = torch.tensor([[by_hand(token, row) for row in w.tolist()] for token in x.tolist()])
    assert torch.allclose(got, want, rtol=1e-5, atol=0)


@pytest.mark.parametrize("recipe", rowwise_recipe.RECIPES)
@pytest.mark.parametrize("data", rowwise_recipe.DATA)
def test_recipes_compute_the_unquantised_layer(recipe: str, data: str) -> None:
    """Wrong scales, rows or channels are far beyond a tenth; something rounds, so that nothing is equal."""
    expert = rowwise_recipe.draw(data, 512, 256, 4, seed=3)
    error = rowwise_recipe.distance(rowwise_recipe.RECIPES[recipe](expert, "hopper"), rowwise_recipe.unquantised(expert))
    assert 0.01 < error["h"] < 0.1 and 0.01 < error["y"] < 0.1


def test_unquantised_layer_by_hand() -> None:
    """One token, one channel; gate beyond the clamp, up below it."""
    one = torch.ones(1, 1)
    expert = rowwise_recipe.Expert(one, torch.tensor([0.5]), torch.tensor([[12.0], [-30.0]]), torch.tensor([[3.0]]), (one, one[0]))
    out = rowwise_recipe.unquantised(expert)
    h = 10 / (1 + torch.tensor(-10.0).double().exp()) * -10 * 0.5
    assert out.h.item() == pytest.approx(h.item()) and out.y.item() == pytest.approx(3 * h.item())


def test_static_scale_knows_the_calibration_tokens_only() -> None:
    expert = rowwise_recipe.draw("normal", 512, 256, 4, seed=3)
    scale = rowwise_recipe.static_scale(expert)
    seen = rowwise_recipe.hidden_values(*expert.seen, expert.fc1).abs().max()
    assert scale.item() * 448 == pytest.approx(rowwise_recipe.MARGIN * seen.item(), rel=1e-6)
    assert torch.equal(scale, rowwise_recipe.static_scale(replace(expert, x=8 * expert.x)))


def test_data_are_as_named() -> None:
    """Mean squares of channels, and of blocks of weights, over those of normal data."""
    experts = {data: rowwise_recipe.draw(data, 1024, 512, 200, seed=0) for data in rowwise_recipe.DATA}
    channels = {data: one.x.float().square().mean(0).sqrt() for data, one in experts.items()}
    assert channels["normal"].max() < 1.5 and channels["outlier channels"].topk(2).values.min() > 10 * channels["outlier channels"].median()
    blocks = {data: one.fc1.float().unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).square().mean((1, 3)) for data, one in experts.items()}
    assert (
        blocks["normal"].max() < 1.1 * blocks["normal"].min() and blocks["block magnitudes"].max() > 100 * blocks["block magnitudes"].min()
    )


def test_chained_sums_are_worse_the_longer_k() -> None:
    """The tensor core's error grows with K where nothing is promoted; exact sums round once, and promotion keeps it at that of K = 128."""
    generator = torch.Generator().manual_seed(1)
    errors = {}
    for k in (128, 4096):
        x, w = (quant.encode_e4m3(100 * torch.randn(n, k, generator=generator)) for n in (8, 128))
        one, truth = torch.ones(8, 1), x.double() @ w.double().T

        def error(got: torch.Tensor, truth: torch.Tensor = truth) -> float:
            return float((got.double() - truth).norm() / truth.norm())

        ones = torch.ones(128, 1)
        errors[k] = {sums: error(rowwise_recipe.rowwise_matmul(x, one, w, ones, sums)) for sums in ("hopper", torch.float64)}
        promoted = reference.promoted_matmul(x, torch.ones(8, k // 128), w, torch.ones(1, k // 128), "hopper")
        errors[k]["promoted"] = error(promoted)
    assert errors[128]["hopper"] == errors[128]["promoted"]
    assert errors[4096]["hopper"] > 3 * errors[4096]["promoted"]
    assert errors[4096]["hopper"] > 1000 * errors[4096][torch.float64]


@cache
def compile_around(config: Sm90Config) -> dict[str, Artifact]:
    """A kernel before, inside and after `unpromoted`."""
    from unpromoted import unpromoted

    before = compile_kernel(config)
    with unpromoted():
        inside = compile_kernel(config)
    return {"before": before, "inside": inside, "after": compile_kernel(config)}


@pytest.fixture(scope="module")
def kernels() -> dict[str, Artifact]:
    return compile_around(CONFIG)


def test_the_replaced_main_loop_only_multiplies(kernels: dict[str, Artifact]) -> None:
    loops = {name: MainLoop.of(one.listing) for name, one in kernels.items()}
    assert {name: (one.wgmmas, one.accumulating, one.fmas) for name, one in loops.items()} == {
        "before": weigh_rowwise.LOOPS["promoted"],
        "inside": weigh_rowwise.LOOPS["unpromoted"],
        "after": weigh_rowwise.LOOPS["promoted"],
    }
    assert loops["inside"].instructions < loops["before"].instructions - 128
    assert [one.resources.stack_bytes for one in kernels.values()] == [0, 0, 0]


def test_the_replacement_is_undone(kernels: dict[str, Artifact]) -> None:
    from unpromoted import unpromoted

    assert kernels["before"].ptx == kernels["after"].ptx != kernels["inside"].ptx
    with pytest.raises(RuntimeError, match="broken"), unpromoted():
        raise RuntimeError("broken")
    assert compile_kernel(CONFIG).ptx == kernels["before"].ptx


@pytest.mark.parametrize("config", [CONFIG, rarely(PAIRS)], ids=["alone", "pairs"])
def test_the_replaced_kernel_chains_all_of_k(config: Sm90Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """On simulated silicon its y has the bits of tensor-core sums over all of K without scales; promoted sums are others.  In pairs of CTAs
    experts have tiles with more tokens than a warpgroup and with fewer."""
    kernels = compile_around(config)
    tokens = config.problem.max_tokens_per_rank
    case = random_case(config.problem, [tokens], seed=4, exact=False)
    want = case.reference("hopper").y[0]
    monkeypatch.setattr(stages, "scaled_matmul", lambda x, x_sf, w, w_sf, accumulate, parts=1: reference.hopper_dot(x, w))
    chained = case.reference("hopper").y[0]
    inputs = [Inputs(*one) for one in zip(case.x, case.x_sf, case.topk_idx, case.topk_weights, strict=True)]
    y, report = SimulatedMoE(kernels["inside"], case.weights)(inputs)
    assert report.findings == [] and torch.equal(y[0], chained)
    y, report = SimulatedMoE(kernels["before"], case.weights)(inputs)
    assert report.findings == [] and torch.equal(y[0], want) and not torch.equal(want, chained)


def test_kernels_that_do_not_fit_their_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="flash EP1 M=8 has tiles of 8 tokens"):
        weigh_rowwise.compile_both(Point("flash", 8, 1), tmp_path)
    monkeypatch.setitem(weigh_rowwise.LOOPS, "promoted", weigh_rowwise.LOOPS["unpromoted"])
    monkeypatch.setattr(weigh_rowwise.Sm90Config, "choose", lambda problem, tokens: CONFIG)
    with pytest.raises(ValueError, match="promoted: a K block must have"):
        weigh_rowwise.compile_both(Point("flash", 8, 1), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_page_has_the_measured_errors() -> None:
    """The means of every record of the file that the page names, and no other line in its table."""
    page = (ROOT / "docs" / "rowwise.md").read_text()
    (file,) = {Path(name) for name in re.findall(r"bench/results/rowwise-accuracy-[-\d]+\.json", page)}
    records = json.loads((ROOT / file).read_text())["records"]
    assert [line for line in page.splitlines() if line.startswith(("| flash |", "| pro |"))] == weigh_rowwise.rows(records)
    assert len(records) == 2 * 3 * len(rowwise_recipe.DATA) * len(rowwise_recipe.RECIPES)  # presets, draws


def test_rows_are_means_over_draws() -> None:
    errors = [{"tensor_core": {"h": h, "y": 0.2}, "exact_sums": {"h": 0.3, "y": 0.4}, "between": {"h": 0.5, "y": 0.6}} for h in (0.1, 0.3)]
    records = [{"preset": "flash", "data": "normal", "recipe": recipe, **one} for recipe in ("a", "b") for one in errors]
    line = "| flash | normal | {} | 20.00% | 30.00% | 50.00% | 20.00% | 40.00% | 60.00% |"
    assert weigh_rowwise.rows(records) == [line.format("a"), line.format("b")]
