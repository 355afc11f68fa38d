"""Launches that begin early beside others (bench/moe_layers/early.py), on a simulated GPU: bits, what a record has, and no time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from forked import RECORD, recorded_by
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.target import Target
from moe_layers.early import ALL, GEMMS, WEIGHTS, compile_early, configs_of

TARGET, TOKENS = Target.typical("sm_90a", 4), 5
LAYER = ExpertLayer(256, 128, 8, 2)
POINT: Any = SimpleNamespace(layer=LAYER, tokens=TOKENS)


def run_on_gpu(folder: Path) -> None:
    """Into a file: the record.  A stand-in GPU has no graphs: calls take their place."""
    from megamoe_dsl.bench import timing
    from moe_layers import early
    from stand_in.gpu import install

    install("sm_90a", TARGET.num_sms)
    timing.REPEATS = timing.GRAPH_LAUNCHES = 1
    timing.graph_of = early.graph_of = lambda one, launches=1: SimpleNamespace(replay=one)
    (record,) = early.run_early([POINT], TARGET, folder, 1)
    torch.save(record, folder / RECORD)


def test_the_ways_differ_in_one_thing_each() -> None:
    configs = configs_of(POINT, TARGET)
    assert list(configs) == [GEMMS, ALL, WEIGHTS] and configs[GEMMS] == configs[ALL]
    assert configs[WEIGHTS][1] == LAYER.configs(TARGET, TOKENS) and configs[WEIGHTS][1].fc2.prefetch_weights


@pytest.mark.usefixtures("one_core")
def test_every_way_has_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compile_early([POINT], TARGET, tmp_path) == 6
    record = recorded_by(run_on_gpu, tmp_path, monkeypatch)
    assert record["passed"] and record["wrong"] == {GEMMS: 0, ALL: 0, WEIGHTS: 0}
    assert record["us"].keys() == {name + more for name in (GEMMS, ALL, WEIGHTS) for more in ("", "; logits")}
