"""The soak of more ranks than GPUs (tests/gpu/soak_ranks.py), the simulator in place of GPUs: what it finds, and what it says of it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ranks_on_gpus
import soak as soak_script
import soak_ranks
from megamoe_dsl import Target, choose
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.point import SEED, Point
from megamoe_dsl.cases import random_weights
from megamoe_dsl.hardware.tensor_map import TensorMap
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.buffers import Inputs, RankBuffers
from megamoe_dsl.runtime.simulated import SimulatedMoE
from ptx_of import artifact
from unfused_ranks import unequal_elements

MOE = Problem(512, 128, 4, 2, 2, 3, recipe="fp8xfp8")
CONFIG = choose(MOE, Target.typical("sm_90a", 2), 3)
LAUNCHES, SETS = 3, 4
INPUTS = ("x", "x_sf", "topk_idx", "topk_weights")
Y, TOKENS = 3, 5  # places among a kernel's arguments


class TinyPoint(Point):
    """A point of the tiny layer."""

    problem = MOE


class SimulatedRanks:
    """In place of the ranks' GPUs: the launch of the last rank runs all of them."""

    def __init__(self) -> None:
        self.buffers: list[RankBuffers] = []
        self.given: list[tuple[int, ...]] = []
        self.launches = 0
        self.moe = SimulatedMoE(artifact(CONFIG), [random_weights(MOE, rank, SEED) for rank in range(MOE.num_ranks)], race=False)

    def allocate(self, *arguments: Any, **options: Any) -> RankBuffers:
        self.buffers.append(RankBuffers(*arguments, **options))
        return self.buffers[-1]

    def __call__(self, arguments: tuple[int, ...]) -> None:
        self.given.append(arguments)
        if len(self.given) < MOE.num_ranks:
            return
        self.moe.ranks, self.moe.buffers, self.moe.results = self.buffers, [self.buffers], [one.results for one in self.buffers]
        self.moe.peers = torch.tensor([one.sym.data_ptr() for one in self.buffers], dtype=torch.int64)
        tokens = [one[TOKENS] for one in self.given]
        inputs = [Inputs(*(one.view(name)[:n] for name in INPUTS)) for one, n in zip(self.buffers, tokens, strict=True)]
        outputs, _ = self.moe(inputs)
        self.spoil(self.launches, outputs)
        self.launches += 1
        for given, y in zip(self.given, outputs, strict=True):
            ctypes.memmove(given[Y], y.data_ptr(), y.numel() * y.itemsize)
        self.given.clear()

    def spoil(self, number: int, outputs: Sequence[torch.Tensor]) -> None:
        """Hook: changes what launch `number` left."""


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimulatedRanks:
    ranks = SimulatedRanks()
    ArtifactStore(tmp_path).save(ranks.moe.artifact)
    monkeypatch.setattr(ranks_on_gpus, "CudaKernel", lambda artifact: ranks)
    monkeypatch.setattr(ranks_on_gpus, "RankBuffers", ranks.allocate)
    for module in (soak_script, soak_ranks):
        monkeypatch.setattr(module, "SETS", SETS)
    monkeypatch.setattr(ranks_on_gpus, "encode_tensor_map", TensorMap.encode)
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda one: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=4))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    return ranks


def soak(folder: Path, **options: Any) -> dict[str, Any]:
    return soak_ranks.soak(TinyPoint("tiny", 3, 2), [torch.device("cpu")], ArtifactStore(folder), LAUNCHES, **options)


def test_equal_launches_are_equal(gpus: SimulatedRanks, tmp_path: Path) -> None:
    record = soak(tmp_path)
    assert record["soak"] == {"launches": LAUNCHES, "kernels": 1, "sets": SETS, "mismatches": 0, "wrong_sets": 0}
    assert gpus.launches == SETS + LAUNCHES
    assert record["differences"] == [] and "parted" not in record


def test_a_wrong_launch_is_found_and_where_it_went_wrong(gpus: SimulatedRanks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(number: int, outputs: Sequence[torch.Tensor]) -> None:
        if number == SETS + 1:
            gpus.buffers[1].view("fc1_acts").view(torch.uint8)[:, 130] ^= 1
            max(outputs, key=len)[0, 300] += 1

    monkeypatch.setattr(gpus, "spoil", spoil)
    record = soak(tmp_path, snapshots=True)
    (wrong,) = record["differences"]
    assert (wrong["launch"], wrong["tokens"], wrong["blocks"]) == (1, 1, [1])
    assert record["parted"]
    assert {(one["launch"], one["rank"], one["stage"], one["blocks"]) for one in record["parted"]} == {(1, 1, "pull", (1,))}


def test_snapshots_need_room(gpus: SimulatedRanks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 20, 1 << 40))
    with pytest.raises(MemoryError, match=r"--soak-snapshots: .* MiB per GPU are needed, 1 are free; take fewer tokens"):
        soak(tmp_path, snapshots=True)


def test_elements_of_all_ranks_are_compared_by_their_bits() -> None:
    one = [torch.zeros(2, 4, dtype=torch.bfloat16), torch.empty(0, 4, dtype=torch.bfloat16), torch.full((1, 4), float("nan")).bfloat16()]
    other = [y.clone() for y in one]
    assert unequal_elements(one, other) == 0
    other[0][1, 2] = -0.0
    other[2][0, 0] = 1.0
    assert unequal_elements(one, other) == 2
