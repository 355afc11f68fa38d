"""The soak of graphs (bench/graph_soak.py) on a simulated GPU: launches are counted, a result with other bits is found, a hang ends it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import graph_soak
import launch_cases
from forked import forked_process
from graph_soak import Runner, groups_of, soak, total
from launch_cases import CASES, Call, LaunchCase
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.blocks.gemm.problem import PACKED
from megamoe_dsl.kernels.decode.config import DecodeConfig
from megamoe_dsl.runtime.preparation import compile_ahead
from megamoe_dsl.target import Target

TARGET = Target.typical("sm_90a", 4)
CALLS = 3


def small_case() -> LaunchCase:
    """Two sets for one kernel."""
    launch_cases.HIDDEN, launch_cases.ROWS = 256, {PACKED: [[3, 0, 5, 8], [0, 16, 0, 0]]}
    return launch_cases.gemms(PACKED, "fp8xfp8")


def run_on_gpu(folder: Path) -> None:
    """Into a file: the records of a soak, and of one whose single calls give another result from the fourth on."""
    from stand_in.gpu import install

    install("sm_90a", TARGET.num_sms)
    graph_soak.graph_of = lambda work, stream: SimpleNamespace(replay=work)  # a stand-in's graph has launches alone
    case, made = small_case(), Counter[str]()

    def spoiled_calls(store: ArtifactStore) -> list[Call]:
        def spoil(call: Call) -> torch.Tensor:
            made["calls"] += 1
            y = call()
            if made["calls"] == 2 + CALLS + 1:  # past the first results and the graph
                y.view(torch.int16)[1, 5] ^= 1
            return y

        return [lambda call=call: spoil(call) for call in case.calls(store)]

    found = [
        list(soak([one], ArtifactStore(folder), seconds=0.0, graphs=1, calls=CALLS)) for one in (case, replace(case, calls=spoiled_calls))
    ]
    torch.save(found, folder / "records.pt")


def test_launches_are_counted_and_other_bits_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HIDDEN", "ROWS"):
            patch.setattr(launch_cases, name, getattr(launch_cases, name))  # put back afterwards
        assert compile_ahead(small_case().configs(TARGET), ArtifactStore(tmp_path), 1) == 1
    monkeypatch.setenv("MEGAMOE_CACHE_DIR", str(tmp_path))
    process = forked_process(run_on_gpu, (tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    (well,), (spoiled,) = torch.load(tmp_path / "records.pt")
    assert well["by_kernel"] == {"gemm fp8xfp8": CALLS + 2} and well["launches"] == CALLS + 2
    assert (well["graph_replays"], well["single_calls"], well["unequal_elements"], well["passed"]) == (1, 2, 0, True)
    assert spoiled["unequal_elements"] == 1 and not spoiled["passed"]
    summed = total([well, spoiled])
    assert summed["launches"] == 2 * (CALLS + 2) and summed["by_kernel"] == {"gemm fp8xfp8": 2 * (CALLS + 2)} and not summed["passed"]


def test_a_case_that_cannot_be_set_up_is_a_failure_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Runner, "of", fail)
    (record,) = soak(CASES[:1], ArtifactStore(tmp_path), 0.0, 1, 1)
    assert not record["passed"] and "RuntimeError: operation not permitted" in graph_soak.row(record)
    assert total([record])["launches"] == 0 and not total([record])["passed"]


def test_a_step_that_does_not_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_soak, "HANG_S", 0.01)
    fence: Any = SimpleNamespace(query=lambda: False)
    runner = Runner(CASES[0], [], graph_soak.LaunchCounter(), torch.zeros(()), SimpleNamespace(), fences=[fence])  # type: ignore[arg-type]
    with pytest.raises(TimeoutError, match=r"moe fp8xfp8: no step has ended"):
        runner.wait(0)


def test_cases_begin_early_and_read_in_bursts() -> None:
    """And all families and number formats of Hopper are among them; of those that fill the GPU one runs at a time."""
    found = {case.name: case.configs(graph_soak.TARGET) for case in CASES}
    experts = [config for name, configs in found.items() if name.startswith("moe ") for config in configs]
    gemms = [one for one in experts if isinstance(one, GemmConfig)]
    assert any(one.burst > 1 and not one.prefetch_weights for one in gemms) and any(isinstance(one, DecodeConfig) for one in experts)
    assert any(one.burst > 1 and one.prefetch_weights for one in gemms)
    assert {name.split()[0] for name in found} == {"moe", "training", "fused", "unfused", "halves", "gemm", "decoding"}
    assert {config.problem.recipe for configs in found.values() for config in configs if getattr(config.problem, "recipe", "")} == {
        "fp8xfp8",
        "bf16xbf16",
        "fp8xmxfp4",
    }
    runners: Any = [SimpleNamespace(case=case) for case in CASES]
    groups = groups_of(runners)
    assert [sum(one.case.fills_gpu for one in group) for group in groups] == [1] * sum(case.fills_gpu for case in CASES)
