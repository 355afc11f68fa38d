"""A call's launches in other ways (bench/moe_layers/launches.py), on a simulated GPU: bits of each, what a record has, and no time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from forked import RECORD, recorded_by
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.target import Target
from moe_layers.launches import same_bits

ARCH, SMS, TOKENS = "sm_90a", 4, 5
LAYER = ExpertLayer(256, 128, 8, 2, recipe="bf16xbf16")


def run_on_gpu(folder: Path) -> None:
    """Into a file: the record."""
    import call_times as host_time
    from moe_layers.launches import run_launches
    from stand_in.gpu import install

    install(ARCH, SMS)
    host_time.WARM_UPS = 1
    point: Any = SimpleNamespace(layer=LAYER, tokens=TOKENS)
    (record,) = run_launches([point], Target.typical(ARCH, SMS), folder, 1, 1)
    torch.save(record, folder / RECORD)


def test_every_way_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ArtifactStore(tmp_path)
    for config in LAYER.configs(Target.typical(ARCH, SMS), TOKENS):
        store.get(config)
    record = recorded_by(run_on_gpu, tmp_path, monkeypatch)
    assert record["passed"] and record["same_bits"].keys() == {"launches", "graph", "moe"}
    assert record["refused"].keys() == {"graph, moved"}  # no node of a simulated graph can be set
    assert record["host_us"].keys() == record["us"].keys() == {*record["same_bits"], "torch add_"}


def test_another_result_is_seen() -> None:
    y, expected = torch.ones(2, 4), torch.ones(2, 4)
    ways = {"right": lambda: y.fill_(1), "a token left out": lambda: y[1:].fill_(1), "nothing": lambda: None}
    assert same_bits(ways, y, expected) == {"right": True, "a token left out": False, "nothing": False}
