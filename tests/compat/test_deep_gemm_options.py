"""Which kernel a call of DeepGEMM's functions takes, with which arguments, and what it refuses; nothing is compiled or run."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from simulated_deep_gemm import OneRank, simulated_hopper

from megamoe_dsl.arch import SM90
from megamoe_dsl.cases import random_weights
from megamoe_dsl.compat import deep_gemm
from megamoe_dsl.compat.deep_gemm import buffer as buffers
from megamoe_dsl.compat.deep_gemm.calls import _in_kernel_order
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import TransformedWeights

PROBLEM = Problem(256, 128, 4, 2, max_tokens_per_rank=16, recipe="fp8xfp8")
SHAPE = (4, 16, 2, 256, 128)
Weights = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[None]:
    """A Hopper GPU whose kernels are not made: what stands for one says what it was made of."""
    with pytest.MonkeyPatch.context() as patch, simulated_hopper(patch, tmp_path):
        patch.setattr(buffers, "RankBuffers", lambda config, weights, *others: SimpleNamespace(weights=weights, stats=others[-1]))
        patch.setattr(buffers, "RankKernel", lambda config, symmetric, shared, *others: SimpleNamespace(config=config, buffers=shared))
        patch.setattr(buffers, "find_kernel", lambda name: SimpleNamespace(choose=lambda *chosen: chosen))
        patch.setattr(buffers, "default_recipe", lambda kernel, arch: PROBLEM.recipe)
        yield


@pytest.fixture
def buffer(gpu: None) -> deep_gemm.SymmBuffer:
    made = deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE)
    made.store = SimpleNamespace(get=lambda config: config)  # type: ignore[assignment]
    return made


def given(seed: int = 0) -> tuple[Weights, Weights]:
    w = random_weights(PROBLEM, 0, seed)
    return deep_gemm.transform_weights_for_mega_moe_sm90((w.fc1, w.fc1_sf), (w.fc2, w.fc2_sf))


def ordered(l1: Weights, l2: Weights) -> TransformedWeights:
    return _in_kernel_order(PROBLEM, SM90, l1, l2)


def test_a_kernel_is_of_its_weights_scales_and_counters(buffer: deep_gemm.SymmBuffer) -> None:
    """Layers of one shape share a buffer: each has the kernel that was made with its own tensors."""
    l1, l2 = given()
    stats = torch.zeros(4, dtype=torch.int32)
    calls: list[tuple[Weights, Weights, torch.Tensor | None]] = [
        (l1, l2, None),
        ((l1[0].clone(), l1[1]), l2, None),
        ((l1[0], l1[1].clone()), l2, None),
        (l1, (l2[0].clone(), l2[1]), None),
        (l1, (l2[0], l2[1].clone()), None),
        (l1, l2, stats),
        (l1, l2, stats.clone()),
    ]
    found = [buffer.kernel(ordered(one, two), three, None, True, 16) for one, two, three in calls]
    for (one, two, three), kernel in zip(calls, found, strict=True):
        weights: Any = kernel.buffers.weights
        mine = [tensor.data_ptr() for tensor in (*one, *two)]
        assert [getattr(weights, name).data_ptr() for name in ("fc1", "fc1_sf", "fc2", "fc2_sf")] == mine
        assert kernel.buffers.stats is three
        assert buffer.kernel(ordered(one, two), three, None, True, 16) is kernel
    assert len({id(kernel) for kernel in found}) == len(calls)


def test_a_configuration_is_of_its_options(buffer: deep_gemm.SymmBuffer) -> None:
    weights = ordered(*given())
    options = [(clamp, fast, bound) for clamp in (None, 7.0, 10.0) for fast in (True, False) for bound in (1, 16)]
    for clamp, fast, bound in (*options, *reversed(options)):
        config: Any = buffer.kernel(weights, None, clamp, fast, bound).config
        assert (config[0].activation_clamp, config[0].fast_math, config[2]) == (clamp, fast, bound)


def test_only_the_weights_named_are_forgotten(buffer: deep_gemm.SymmBuffer) -> None:
    first, second = given(0), given(1)
    kernels = [buffer.kernel(ordered(*one), None, None, True, 16) for one in (first, second)]
    buffer.forget_weights(first[0])
    assert buffer.kernel(ordered(*second), None, None, True, 16) is kernels[1]
    assert buffer.kernel(ordered(*first), None, None, True, 16) is not kernels[0]


def test_weights_that_no_transform_returns() -> None:
    l1, l2 = given()
    strided = torch.zeros(*l1[0].shape[:-1], 2 * l1[0].shape[-1], dtype=torch.uint8).view(torch.float8_e4m3fn)[..., ::2]
    assert strided.shape == l1[0].shape and strided.dtype == l1[0].dtype
    for wrong in (strided, l1[0].flatten(), l1[0].view(torch.uint8)):
        with pytest.raises(ProblemError, match=r"l1_weights\[0\] = .*contiguous, as transform_weights_for_mega_moe_sm90 returns it"):
            ordered((wrong, l1[1]), l2)


def test_what_lies_on_another_device(buffer: deep_gemm.SymmBuffer) -> None:
    weights, y = given(), torch.zeros(5, 256, dtype=torch.bfloat16)
    stats = torch.zeros(4, dtype=torch.int32)
    with pytest.raises(ProblemError, match="y"):
        deep_gemm.fp8_mega_moe(y.to("meta"), *weights, buffer)
    with pytest.raises(ProblemError, match="cumulative_local_expert_recv_stats"):
        deep_gemm.fp8_mega_moe(y, *weights, buffer, cumulative_local_expert_recv_stats=stats.to("meta"))
    with pytest.raises(ProblemError, match="cumulative_local_expert_recv_stats"):
        deep_gemm.fp8_mega_moe(y, *weights, buffer, cumulative_local_expert_recv_stats=stats.long())
    launched = record_pre_dispatch(buffer)
    tokens = (y, torch.zeros(5, 2, dtype=torch.int64), torch.ones(5, 2))
    for i, name in enumerate(("x", "topk_idx", "topk_weights")):
        moved = [one.to("meta") if i == j else one for j, one in enumerate(tokens)]
        with pytest.raises(ProblemError, match=name):
            pre_dispatch(buffer, moved)
    assert launched == []


def record_pre_dispatch(buffer: deep_gemm.SymmBuffer) -> list[tuple[int, ...]]:
    """Arguments of launches from here on; the first top-k weight in place of its address, which is read at once."""
    launched: list[tuple[int, ...]] = []

    def launch(arguments: tuple[int, ...]) -> None:
        *others, weights, tokens, rows = arguments
        launched.append((len(others), int(ctypes.c_float.from_address(weights).value), tokens, rows))

    buffer._pre_dispatch = launch  # type: ignore[assignment]
    return launched


def pre_dispatch(buffer: deep_gemm.SymmBuffer, tokens: Any, other: deep_gemm.SymmBuffer | None = None, **options: Any) -> None:
    views = [getattr(buffer, name) for name in ("x_sf", "topk_idx", "topk_weights")]
    if other is not None:
        views[options.pop("which")] = getattr(other, options.pop("name"))
    deep_gemm.mega_moe_pre_dispatch_sm90(*tokens, buffer.x, *views, **{"num_tokens": 5, **options})


TOKENS = (torch.zeros(5, 256, dtype=torch.bfloat16), torch.zeros(5, 2, dtype=torch.int64), torch.full((5, 2), 3.0))


def test_the_scaling_factor_and_the_padding(buffer: deep_gemm.SymmBuffer) -> None:
    launched = record_pre_dispatch(buffer)
    pre_dispatch(buffer, TOKENS)
    pre_dispatch(buffer, TOKENS, routed_scaling_factor=2.0)
    assert launched == [(3, 3, 5, 16), (3, 6, 5, 16)]


@pytest.mark.parametrize(("which", "name"), [(0, "x_sf"), (1, "topk_idx"), (2, "topk_weights")])
def test_views_of_two_buffers(buffer: deep_gemm.SymmBuffer, which: int, name: str) -> None:
    other = deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE)
    with pytest.raises(ProblemError, match=f"buf_{name} = .*the {name} of the buffer that buf_x is of"):
        pre_dispatch(buffer, TOKENS, other, which=which, name=name)


def test_grids_are_even(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, num_sms in ((1, 2), (6, 6), (7, 6)):
        monkeypatch.setattr(buffers, "_asked", asked)
        assert deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE).target.num_sms == num_sms


def test_the_bound_is_the_callers(buffer: deep_gemm.SymmBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the buffer's capacity; a kernel is chosen for one token at least."""
    bounds: list[int] = []
    monkeypatch.setattr(buffer, "kernel", lambda *given: bounds.append(given[-1]) or (lambda y: None))
    for rows, bound in ((5, 7), (5, None), (0, 0)):
        deep_gemm.fp8_mega_moe(torch.zeros(rows, 256, dtype=torch.bfloat16), *given(), buffer, num_tokens_bound=bound)
    assert bounds == [7, 16, 1]


@pytest.mark.parametrize(("hidden", "intermediate", "field"), [(288, 128, "hidden = 288"), (256, 160, "intermediate_hidden = 160")])
def test_weights_are_given_in_whole_tiles(gpu: None, hidden: int, intermediate: int, field: str) -> None:
    with pytest.raises(ProblemError, match=f"{field}: must be a multiple of .*whole tiles"):
        deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), 4, 16, 2, hidden, intermediate)
