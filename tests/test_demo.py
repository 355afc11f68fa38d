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
    if asked == "bench":
        options = calls["bench"]
        assert (options["ranks"], options["experts_per_rank"], options["artifacts"]) == ("4", 32, Path(".megamoe"))
        assert "4 GPU(s)" in result.output
