"""Figures of the model to nine digits: of small layers, whose launches take milliseconds to predict."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import pytest

from megamoe_dsl import Problem, Target, choose
from megamoe_dsl.arch import GPUS
from prediction.calibration import calibration_of
from prediction.launch import RankLoad
from prediction.nodes import NodePrediction
from prediction.prediction import Subject
from prediction.timeline import draw

LAYER = Problem(1024, 512, 16, 2, 2, 256)
LAUNCHES: list[tuple[str, str, int, dict[str, Any], tuple[float, ...]]] = [
    ("sm_90a", "fp8xfp8", 8, {"block_m": 8}, (26.66897023, 112.7853038, 0.03373965096, 0.0503267132, 0.002477205365, 0.01859343515)),
    (
        "sm_90a",
        "fp8xfp8",
        256,
        {"block_m": 128, "cluster": 1},
        (43.84719548, 137.6335154, 0.04559473146, 0.05436856484, 0.0251901203, 0.03531757639),
    ),
    (
        "sm_90a",
        "fp8xfp8",
        256,
        {"block_m": 128, "cluster": 2},
        (43.71386215, 137.7501329, 0.04573380171, 0.04950166799, 0.02526695365, 0.03542529989),
    ),
    (
        "sm_90a",
        "fp8xfp8",
        800,
        {"block_m": 128, "cluster": 2},
        (65.69344821, 166.1038342, 0.05660144495, 0.05528540498, 0.05069096854, 0.06145918162),
    ),
    ("sm_90a", "fp8xmxfp4", 200, {"block_m": 64}, (32.84242744, 147.2155955, 0.03877471659, 0.04649596644, 0.05142050467, 0.06441979611)),
    ("sm_90a", "fp8xmxfp4", 256, {"block_m": 128}, (58.87530054, 126.8644571, 0.02474440374, 0.02665572187, 0.01876026312, 0.05490117593)),
    ("sm_90a", "bf16xbf16", 8, {"block_m": 8}, (30.33995003, 122.9669668, 0.05963819216, 0.08871358239, 0.002903301469, 0.03268744794)),
    ("sm_100a", "fp8xfp4", 256, {"block_m": 192}, (29.22766605, 191.678604, 0.03423649354, 0.0424993405, 0.0188696825, 0.01918766999)),
    (
        "sm_100a",
        "fp8xfp4",
        100,
        {"block_m": 32, "epilogue_warpgroups": 1},
        (26.75745754, 173.2370777, 0.02131332233, 0.02723350391, 0.01548767246, 0.02020149111),
    ),
    ("sm_100a", "mxf4xmxf4", 256, {"block_m": 128}, (27.37006013, 174.4541195, 0.03042049835, 0.02950664092, 0.01679197317, 0.01024496856)),
    (
        "sm_100a",
        "nvfp4xnvfp4",
        8,
        {"block_m": 32},
        (25.98634968, 158.9170262, 0.01250968923, 0.01861164244, 0.001057860501, 0.006630300116),
    ),
    ("sm_100a", "bf16xbf16", 256, {"block_m": 96}, (30.01253758, 231.4656019, 0.06827297361, 0.08773247904, 0.02450161712, 0.037371769)),
]
"""Of an architecture, a recipe, tokens and fields: us, watts, the busy shares of HBM, L2, NVLink and tensor cores."""


@pytest.mark.parametrize(("arch", "recipe", "tokens", "fields", "wanted"), LAUNCHES)
def test_launches(arch: str, recipe: str, tokens: int, fields: dict[str, Any], wanted: tuple[float, ...]) -> None:
    problem, target = replace(LAYER, recipe=recipe, max_tokens_per_rank=max(256, tokens)), Target.typical(arch)
    config, load = choose(problem, target, tokens, **fields), RankLoad.uniform(problem, tokens, None if tokens < 256 else 0.25)
    found = Subject.of(config, load).predict(calibration_of(str(target.gpu)))
    assert (found.us, found.watts, *found.busy.values()) == pytest.approx(wanted, rel=1e-9)


def test_a_drawn_launch_fills_its_own_axis() -> None:
    target, counts = Target.typical("sm_90a"), (8, 256)
    problem, calibration = replace(LAYER, recipe="fp8xfp8"), calibration_of(str(target.gpu))
    configs = [choose(problem, target, tokens) for tokens in counts]
    loads = [RankLoad.uniform(problem, tokens) for tokens in counts]
    found = [Subject.of(one, load).predict(calibration) for one, load in zip(configs, loads, strict=True)]
    charts: Any = draw(found, "NVIDIA H200").charts
    assert [one.extent for one in charts] == [one.us for one in found] and found[0].us < found[1].us
    assert all(one.extent == max(bar.end for lane in one.lanes for bar in lane.bars) for one in charts)


@pytest.mark.parametrize(
    ("tokens", "wanted"),
    [
        (128, (128, 4, 1, 167.2296187, 133.31995136, 33.90966732, 541499.392, 1.802, 1.349, 1.45, 2.9845)),
        (4096, (4096, 4, 2, 1536.238444, 1536.238444, 387.8126075, 17327980.54, 1.802, 1.349, 1.45, 2.9845)),
    ],
)
def test_nodes(tokens: int, wanted: tuple[object, ...]) -> None:
    node, gpu = replace(LAYER, recipe="fp8xfp8", num_experts=64, topk=4), GPUS["NVIDIA H200"]
    found = NodePrediction.of(node, tokens, 4, 100, gpu, 2)
    *figures, limit, spread = astuple(found)
    assert (*figures, *spread) == pytest.approx(wanted, rel=1e-9) and limit == "network"
