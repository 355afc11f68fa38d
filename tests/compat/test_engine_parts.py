"""What layers of all serving engines share: the kernels they are compiled for, their buffer, and weights as engines load them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megamoe_dsl.arch import SM90
from megamoe_dsl.cases import random_weights
from megamoe_dsl.compat.engines import shared_parts
from megamoe_dsl.compat.engines.shared_parts import new_layer, plain_weights, prepared_bounds, require_values, symmetric_of
from megamoe_dsl.json_file import FOLDER_VARIABLE
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import decode_ue8m0
from megamoe_dsl.target import Target

PROBLEM = Problem(256, 256, 4, 2, max_tokens_per_rank=5, recipe="fp8xfp8")


def test_kernels_are_compiled_once_and_each_bound_is_the_last_of_its_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By one process of a machine at a time, before a bound is known."""
    events: list[Any] = []

    @contextmanager
    def alone(place: Path, what: str) -> Iterator[None]:
        events.append(place)
        yield
        events.append("free")

    class Chosen:
        def __init__(self, problem: Problem, tokens: range) -> None:
            events.append((problem, tokens))

        def configs(self, target: Target) -> dict[int, str]:
            return {1: "few", 2: "few", 3: "more", 4: "few", 5: "few"}

    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(shared_parts, "one_process", alone)
    monkeypatch.setattr(shared_parts, "Selection", Chosen)
    prepare = SimpleNamespace(prepare=lambda problem, target: events.append((problem, target)))
    monkeypatch.setattr(shared_parts, "MegaMoE", prepare)
    prepared_bounds.cache_clear()
    target = Target(SM90, 4, "simulated")
    for _ in range(2):
        assert prepared_bounds(PROBLEM, target) == [2, 3, 5]
    assert events == [tmp_path / "cache" / "engine-kernels.lock", (PROBLEM, target), "free", (PROBLEM, range(1, 6))]
    assert (tmp_path / "cache").is_dir()
    prepared_bounds.cache_clear()


def test_layers_of_a_problem_and_group_share_a_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_parts, "SymmetricBuffer", SimpleNamespace(allocate=lambda problem, group: (problem, group, object())))
    symmetric_of.cache_clear()
    other = replace(PROBLEM, topk=1)
    found: list[Any] = [symmetric_of(*given) for given in ((PROBLEM, "a"), (PROBLEM, "a"), (PROBLEM, "b"), (other, "a"))]
    assert found[0] is found[1] and [one[:2] for one in found[1:]] == [(PROBLEM, "a"), (PROBLEM, "b"), (other, "a")]
    symmetric_of.cache_clear()


def test_a_layer_is_made_of_what_an_engine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels are those of the SMs that are left; the limit is given in seconds."""
    made: dict[str, Any] = {
        "gpu_target": lambda device: Target(SM90, 132, f"a GPU at {device}"),
        "grid_target": lambda target, reserved: replace(target, num_sms=target.num_sms - reserved),
        "symmetric_of": lambda problem, group: ("buffer", problem, group),
        "prepared_bounds": lambda problem, target: ("bounds", problem, target),
        "MegaMoE": lambda problem, **given: (problem, given),
    }
    for name, one in made.items():
        monkeypatch.setattr(shared_parts, name, one)
    given = {
        "symmetric": ("buffer", PROBLEM, "group"),
        "bounds": ("bounds", PROBLEM, Target(SM90, 130, "a GPU at cuda:1")),
        "reserved_sms": 2,
        "watchdog_ns": 1_500_000_000,
    }
    assert new_layer(PROBLEM, torch.device("cuda:1"), "group", 2, 1.5) == (PROBLEM, given)


@pytest.mark.parametrize("codes", [torch.int8, torch.uint8])
@pytest.mark.parametrize("scales", [torch.float32, torch.uint8])
def test_weights_of_4_bits_may_have_scales_in_fp32(codes: torch.dtype, scales: torch.dtype) -> None:
    weights = random_weights(replace(PROBLEM, recipe="fp8xmxfp4"), 0, 1)
    given: dict[str, Any] = {}
    for name, one in vars(weights).items():
        if one is not None and one.numel() and "bias" not in name:
            scaled = decode_ue8m0(one).float() if name.endswith("_sf") and scales == torch.float32 else one
            given[name] = torch.nn.Parameter(scaled if name.endswith("_sf") else one.view(codes), requires_grad=False)
    found = plain_weights(given)
    for name in given:
        assert getattr(found, name).dtype == torch.uint8 and torch.equal(getattr(found, name), getattr(weights, name))
    if scales == torch.float32:
        given["fc2_sf"].data[1, 2, 3] *= 1.5
        with pytest.raises(ProblemError, match=r"fc2_sf = .*: must be powers of two"):
            plain_weights(given)


def test_the_first_value_that_is_another_is_named() -> None:
    require_values("here", ("one", 1, 1), ("none", None, None))
    with pytest.raises(ProblemError, match="two = 3: must be 2 here"):
        require_values("here", ("one", 1, 1), ("two", 3, 2), ("three", 4, 3))
