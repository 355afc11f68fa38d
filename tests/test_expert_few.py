"""A few tokens in one launch beside four and the fused kernel (bench/moe_layers/few_tokens.py), on a simulated GPU: bits, and no time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from forked import RECORD, recorded_by
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.target import Target
from moe_layers.few_tokens import LAUNCHES, READING, compile_few, few_table
from moe_layers.launch_table import FOUR

TARGET = Target.typical("sm_90a", 4)
POINT: Any = SimpleNamespace(layer=ExpertLayer(256, 128, 8, 2), tokens=3, recipe="none of the fused kernel's")


def run_on_gpu(folder: Path) -> None:
    """Into a file: the record.  A stand-in GPU has no graphs: calls take their place."""
    from megamoe_dsl.bench import timing
    from moe_layers import few_tokens
    from stand_in.gpu import install

    install("sm_90a", TARGET.num_sms)
    timing.REPEATS = timing.GRAPH_LAUNCHES = 1
    few_tokens.GRAPH_LAUNCHES = 2
    timing.graph_of = few_tokens.graph_of = lambda one, launches=1: SimpleNamespace(replay=one)
    few_tokens.TURNS, few_tokens.READ_BYTES = 1, 1 << 10
    (record,) = few_tokens.run_few([POINT], TARGET, folder, replays=1)
    torch.save(record, folder / RECORD)


@pytest.mark.usefixtures("one_core")
def test_one_launch_has_the_bits_of_four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compile_few([POINT], TARGET, tmp_path) == 5
    record = recorded_by(run_on_gpu, tmp_path, monkeypatch)
    assert record["passed"] and record["us"].keys() == {FOUR, LAUNCHES, READING} and 2 <= record["experts_met"] <= 6
    assert few_table([record]).count("\n") == 2 and record["weight_bytes"] == record["experts_met"] * 3 * 256 * 128
