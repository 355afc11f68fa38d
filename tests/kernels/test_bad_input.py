"""Bad input raises before anything is launched or written, and says which field, which value, and what is allowed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from mega_moe_runs import config, inputs, problem

from megamoe_dsl.cases import random_case
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.registry import arch_of_recipe, family_of, find_kernel
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.recipe import RECIPES
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.simulated import SimulatedMoE
from ptx_of import artifact

LAYER = problem(8, num_experts=8, topk=3)
Given = tuple[list[Inputs], list[torch.Tensor]]


@cache
def case():
    return random_case(LAYER, (6, 4), 0)


@pytest.mark.parametrize(
    ("changes", "field", "allowed"),
    [
        ({"num_experts": 9}, "num_experts", "a multiple of num_ranks = 2"),
        ({"hidden": 400}, "hidden", "a multiple of 32"),
        ({"intermediate": 200}, "intermediate", "a multiple of 32"),
        ({"intermediate": 16512}, "intermediate", "at most 16384"),
        ({"topk": 33, "num_experts": 64}, "topk", "at most 32"),
        ({"topk": 9}, "topk", "at most num_experts = 8"),
        ({"num_ranks": 129, "num_experts": 129}, "num_ranks", "at most 128"),
        ({"recipe": "bf16"}, "recipe", "one of " + ", ".join(RECIPES)),
        ({"activation_clamp": -1.0}, "activation_clamp", "None or a number between 2^-126 and 1e+15"),
    ],
    ids=lambda value: str(value),
)
def test_shapes_that_no_kernel_has(changes, field, allowed):
    with pytest.raises(ProblemError) as caught:
        problem(**changes)
    assert (caught.value.field, caught.value.value, caught.value.allowed) == (field, changes[field], allowed)


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ({"num_sms": 3}, "num_sms"),
        ({"block_m": 48}, "block_m"),
        ({"lookahead": 99}, "lookahead"),
        ({"num_stages": 99}, "num_stages"),
    ],
)
def test_configurations_that_do_not_exist(overrides, field):
    with pytest.raises(ConfigError) as caught:
        config(LAYER, **overrides)
    assert (caught.value.field, caught.value.value) == (field, overrides[field])


def changed(rank: int, **tensors: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Given], Given]:
    """The inputs of a rank with some tensors replaced by functions of them."""

    def change(given: Given) -> Given:
        ranks, y = given
        new = {name: make(getattr(ranks[rank], name)) for name, make in tensors.items()}
        return [dataclasses.replace(one, **new) if r == rank else one for r, one in enumerate(ranks)], y

    return change


def output(rank: int, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Given], Given]:
    return lambda given: (given[0], [make(out) if r == rank else out for r, out in enumerate(given[1])])


def with_value(row: int, slot: int, value: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def make(idx: torch.Tensor) -> torch.Tensor:
        idx = idx.clone()
        idx[row, slot] = value
        return idx

    return make


def repeated(idx: torch.Tensor) -> torch.Tensor:
    idx = idx.clone()
    idx[1] = torch.tensor([5, 2, 5])
    return idx


def tokens(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: t.new_zeros((count, *t.shape[1:]))


def columns(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: t.view(torch.uint8)[:, :count].contiguous().view(t.dtype)


def transposed(t: torch.Tensor) -> torch.Tensor:
    """The same shape and values, columns adjacent in memory."""
    return t.view(torch.uint8).t().contiguous().t().view(t.dtype) if t.itemsize == 1 else t.t().contiguous().t()


def meta(t: torch.Tensor) -> torch.Tensor:
    return t.to("meta")


def misaligned(t: torch.Tensor) -> torch.Tensor:
    return torch.empty(t.numel() + 1, dtype=t.dtype)[1:].view(t.shape)


BAD: dict[str, tuple[Callable[[Given], Given], str, Any, str]] = {
    "too many tokens": (
        changed(1, x=tokens(9), x_sf=tokens(9), topk_idx=tokens(9), topk_weights=tokens(9)),
        *("inputs[1].x.shape[0]", 9, "between 0 and max_tokens_per_rank = 8"),
    ),
    "expert too large": (changed(0, topk_idx=with_value(2, 1, 8)), "inputs[0].topk_idx, token 2, slot 1", 8, "-1 (masked) or 0..7"),
    "expert below -1": (changed(1, topk_idx=with_value(0, 0, -2)), "inputs[1].topk_idx, token 0, slot 0", -2, "-1 (masked) or 0..7"),
    "expert beyond 32 bits": (
        changed(1, topk_idx=with_value(0, 0, 1 << 32)),
        "inputs[1].topk_idx, token 0, slot 0",
        1 << 32,
        "-1 (masked) or 0..7",
    ),
    "repeated expert": (
        changed(1, topk_idx=repeated),
        *("inputs[1].topk_idx, token 1, slot 2", 5, "an expert not named earlier in the row (slot 0 has it)"),
    ),
    "x dtype": (changed(0, x=lambda t: t.view(torch.uint8)), "inputs[0].x.dtype", torch.uint8, "torch.float8_e4m3fn"),
    "x width": (changed(0, x=columns(128)), "inputs[0].x.shape", (6, 128), "(6, 256)"),
    "x without rows": (changed(0, x=lambda t: t[0]), "inputs[0].x.shape", (256,), "(tokens, 256)"),
    "x strides": (changed(1, x=transposed), "inputs[1].x.stride()", (1, 4), "contiguous"),
    "x_sf dtype": (changed(0, x_sf=lambda t: t.view(torch.int8)), "inputs[0].x_sf.dtype", torch.int8, "torch.uint8"),
    "x_sf rows": (changed(1, x_sf=tokens(3)), "inputs[1].x_sf.shape", (3, 8), "(4, 8)"),
    "x_sf strides": (changed(0, x_sf=transposed), "inputs[0].x_sf.stride()", (1, 6), "contiguous"),
    "topk_idx dtype": (
        changed(0, topk_idx=lambda t: t.short()),
        *("inputs[0].topk_idx.dtype", torch.int16, "torch.int64 or torch.int32"),
    ),
    "topk_idx width": (changed(0, topk_idx=lambda t: t[:, :2].contiguous()), "inputs[0].topk_idx.shape", (6, 2), "(6, 3)"),
    "topk_idx strides": (changed(0, topk_idx=transposed), "inputs[0].topk_idx.stride()", (1, 6), "contiguous"),
    "topk_weights dtype": (
        changed(1, topk_weights=lambda t: t.bfloat16()),
        *("inputs[1].topk_weights.dtype", torch.bfloat16, "torch.float32"),
    ),
    "topk_weights width": (changed(1, topk_weights=lambda t: t[:, :1].contiguous()), "inputs[1].topk_weights.shape", (4, 1), "(4, 3)"),
    "x elsewhere": (changed(1, x=meta), "inputs[1].x.device", torch.device("meta"), "cpu"),
    "topk_idx elsewhere": (changed(0, topk_idx=meta), "inputs[0].topk_idx.device", torch.device("meta"), "cpu"),
    "y dtype": (output(0, lambda t: t.float()), "y[0].dtype", torch.float32, "torch.bfloat16"),
    "y rows": (output(1, lambda t: t[:3]), "y[1].shape", (3, 256), "(4, 256)"),
    "y strides": (output(1, transposed), "y[1].stride()", (1, 4), "contiguous"),
    "ranks of inputs": (lambda given: (given[0][:1], given[1]), "len(inputs)", 1, "num_ranks = 2"),
    "ranks of y": (lambda given: (given[0], [*given[1], given[1][0]]), "len(y)", 3, "num_ranks = 2"),
}


def snapshot(moe: SimulatedMoE, y: list[torch.Tensor]) -> list[torch.Tensor]:
    held = [getattr(rank, name) for rank in moe.ranks for name in ("sym", "stats", "watchdog")]
    held += [getattr(rank.weights, name) for rank in moe.ranks for name in ("fc1", "fc1_sf", "fc2", "fc2_sf")]
    return [tensor.clone() for tensor in (*held, *y)]


@pytest.fixture
def idle_layer(monkeypatch) -> tuple[SimulatedMoE, Given]:
    """A layer with marks in its buffers, good arguments for it, and a simulator that must not run."""
    moe = SimulatedMoE(artifact(config(LAYER)), case().weights)
    for rank in moe.ranks:
        rank.sym.fill_(7)
    monkeypatch.setattr(moe.simulator, "run", lambda launches: pytest.fail("launched"))
    return moe, (inputs(case()), [torch.full((one.num_tokens, LAYER.hidden), 3.0, dtype=torch.bfloat16) for one in inputs(case())])


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name, idle_layer):
    moe, given = idle_layer
    break_it, field, value, allowed = BAD[name]
    ranks, y = break_it(given)
    before = snapshot(moe, y)
    with pytest.raises(ProblemError) as caught:
        moe(ranks, y)
    assert (caught.value.field, caught.value.value, caught.value.allowed) == (field, value, allowed)
    assert str(caught.value) == f"{field} = {value!r}: must be {allowed}"
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(moe, y), strict=True))


def test_misaligned_output(idle_layer):
    """A view that starts in the middle of 16 bytes: bulk stores could not write it."""
    moe, (ranks, y) = idle_layer
    with pytest.raises(ProblemError, match=r"y\[1\]\.data_ptr\(\) = \d+: must be a multiple of 16"):
        moe(ranks, [y[0], misaligned(y[1])])


def test_wrong_number_of_weights():
    with pytest.raises(ProblemError, match=r"len\(weights\) = 1: must be num_ranks = 2"):
        SimulatedMoE(artifact(config(LAYER)), case().weights[:1])


def test_output_elsewhere(idle_layer):
    moe, (ranks, y) = idle_layer
    with pytest.raises(ProblemError, match=r"y\[1\]\.device = .*meta.*: must be cpu"):
        moe(ranks, [y[0], meta(y[1])])


def test_weights_elsewhere():
    one = case().weights[1]
    gone = one.map(meta)
    with pytest.raises(ProblemError, match=r"weights\[1\]\.device = .*meta.*: must be cpu"):
        SimulatedMoE(artifact(config(LAYER)), [case().weights[0], gone])


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_watchdog_that_could_not_wait_is_refused(limit):
    with pytest.raises(ProblemError, match=f"watchdog_ns = {limit}: must be a whole number of nanoseconds"):
        SimulatedMoE(artifact(config(LAYER)), case().weights, watchdog_ns=limit)


@pytest.mark.parametrize("name", ["fc1", "fc1_sf", "fc2", "fc2_sf"])
def test_weights_that_do_not_fit_change_nothing(name, idle_layer):
    """The second rank's weights are wrong: the first rank's stay, too."""
    moe, (_, y) = idle_layer
    other = random_case(LAYER, (6, 4), 1).weights
    wrong = dataclasses.replace(other[1], **{name: getattr(other[1], name)[:, :-1]})
    before = snapshot(moe, y)
    with pytest.raises(ValueError, match=name):
        moe.load_weights([other[0], wrong])
    with pytest.raises(ProblemError, match=r"len\(weights\) = 1"):
        moe.load_weights(other[:1])
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(moe, y), strict=True))


def test_what_no_kernel_computes_is_named() -> None:
    with pytest.raises(ProblemError, match=r"problem = 'a layer': must be one of Problem, .*GemmProblem"):
        family_of("a layer")
    with pytest.raises(ProblemError, match=r"recipe = 'fp4': must be one that mega_moe takes: .*fp8xfp8"):
        arch_of_recipe(find_kernel("mega_moe"), "fp4")
