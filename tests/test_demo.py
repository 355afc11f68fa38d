"""What `megamoe demo` runs: the simulator without Hopper GPUs, the benchmark with them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import megamoe_dsl.cli.app as commands
from megamoe_dsl import target as compiled
from megamoe_dsl.cli.app import app
from megamoe_dsl.target import Target

runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.mark.parametrize(("gpus", "ranks"), [(0, 0), (1, 1), (3, 2), (4, 4), (8, 8), (16, 8)])
def test_ranks_are_a_power_of_two(gpus: int, ranks: int) -> None:
    assert commands.usable_ranks(gpus) == ranks


@pytest.mark.parametrize(
    ("arch", "gpus", "asked"),
    [(None, 0, "simulate"), ("sm_100a", 8, "simulate"), ("sm_90a", 6, "bench")],
)
def test_gpus_that_have_the_kernel_are_used(monkeypatch: pytest.MonkeyPatch, arch: str | None, gpus: int, asked: str) -> None:
    calls: dict[str, dict[str, Any]] = {}
    monkeypatch.setattr(compiled, "local_target", lambda: None if arch is None else Target.typical(arch))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for name in ("bench", "simulate"):
        monkeypatch.setattr(commands, name, lambda name=name, **options: calls.update({name: options}))
    result = runner.invoke(app, ["demo"])
    assert result.exit_code == 0, result.output
    assert list(calls) == [asked]
    (options,) = calls.values()
    if asked == "bench":
        folder = Path(".megamoe")
        points = {"preset": "flash", "tokens": "8,512,2048", "ranks": "4", "experts_per_rank": 32}
        assert options == {**points, "artifacts": folder, "out": folder / "demo"}
        assert "DeepSeek-V4-Flash, 32 experts per rank, on 4 GPU(s)" in result.output and "What this showed" in result.output
    else:
        layer = {"ranks": 2, "hidden": 512, "intermediate": 512, "experts": 8, "topk": 2}
        assert options == {**layer, "tokens": "13,7", "seed": 0, "mask": 0.2, "launches": 2}
        assert "2 ranks: 8 experts, hidden 512, intermediate 512, top-2, 13 and 7 tokens, two launches" in result.output
        assert "What this proved" in result.output
