"""Which kernel a call of DeepGEMM's functions takes, with which arguments, and what it refuses; nothing is compiled or run."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from simulated_deep_gemm import OneRank, simulated_hopper

from megamoe_dsl.arch import SM90, SM100, Arch
from megamoe_dsl.cases import random_weights
from megamoe_dsl.compat import deep_gemm
from megamoe_dsl.compat.deep_gemm import buffer as buffers
from megamoe_dsl.compat.deep_gemm.calls import _bound, _in_kernel_order
from megamoe_dsl.kernels.moe.layouts.symmetric import symmetric_buffer
from megamoe_dsl.problem import MAX_CLAMP, Problem, ProblemError
from megamoe_dsl.quant import TransformedWeights
from megamoe_dsl.target import Target

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


@pytest.mark.parametrize(
    ("activation", "clamp", "want"),
    [("swiglu", None, None), ("swiglu", 7.0, 7.0), ("swiglu", math.inf, None), ("swigluoai", None, MAX_CLAMP), ("swigluoai", 7.0, 7.0)],
)
def test_no_clamp_is_no_clamp(buffer: deep_gemm.SymmBuffer, activation: str, clamp: float | None, want: float | None) -> None:
    """Also of the activation that has a clamp of its own here, which DeepGEMM's has not."""
    assert buffer.layer(activation, clamp, True, False).activation_clamp == want


def test_only_the_weights_named_are_forgotten(buffer: deep_gemm.SymmBuffer) -> None:
    first, second = given(0), given(1)
    kernels = [buffer.kernel(ordered(*one), None, PROBLEM, 16) for one in (first, second)]
    buffer.forget_weights(first[0])
    assert buffer.kernel(ordered(*second), None, PROBLEM, 16) is kernels[1]
    assert buffer.kernel(ordered(*first), None, PROBLEM, 16) is not kernels[0]


def test_calls_that_differ_in_one_thing_have_kernels_of_their_own(buffer: deep_gemm.SymmBuffer) -> None:
    """And those that do not have the same."""
    weights = ordered(*given())

    def kernel(activation: str = "swiglu", clamp: float | None = None, fast_math: bool = True, bound: int = 16, stats: Any = None) -> Any:
        return buffer.kernel(weights, stats, buffer.layer(activation, clamp, fast_math, False), bound)

    counted = torch.zeros(4, dtype=torch.int32)
    ways: tuple[dict[str, Any], ...] = ({}, {"activation": "situ"}, {"clamp": 7.0}, {"fast_math": False}, {"bound": 8}, {"stats": counted})
    found = [kernel(**one) for one in ways]
    assert len({id(one) for one in found}) == len(ways) and [kernel(**one) for one in ways] == found
    for way, one in zip(ways, found, strict=True):
        problem, _, bound = one.config
        layer = (problem.activation, problem.activation_clamp, problem.fast_math, bound)
        assert layer == ("situ" if "activation" in way else "silu", way.get("clamp"), way.get("fast_math", True), way.get("bound", 16))
    assert found[-1].buffers.stats is counted and found[0].buffers.stats is None
    assert {id(one.buffers) for one in found[:-1]} == {id(found[0].buffers)}  # tensor maps are made once
    assert [buffer.layer("swiglu", None, True, biases).biases for biases in (False, True)] == [False, True]


def test_a_buffer_that_was_destroyed_has_nothing(buffer: deep_gemm.SymmBuffer) -> None:
    x, symmetric, others = buffer.x, buffer.symmetric, (buffer.x_sf, buffer.topk_idx, buffer.topk_weights)
    buffer.kernel(ordered(*given()), None, PROBLEM, 16)
    record_pre_dispatch(buffer)
    for _ in range(2):
        buffer.destroy()
    assert symmetric.num_bytes == 0 and not buffer._kernels and buffer._pre_dispatch is None
    assert not any(getattr(buffer, name) is not None for name in ("symmetric", "buffer", "group", "x", "x_sf", "topk_idx", "topk_weights"))
    with pytest.raises(ProblemError, match="buf_x = 'a tensor at"):
        deep_gemm.mega_moe_pre_dispatch_sm90(*TOKENS, x, *others, num_tokens=5)


def test_sms_are_those_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until somebody asks, all that the device has."""
    monkeypatch.setattr(buffers, "_asked", None)
    monkeypatch.setattr(buffers, "current_device", lambda: "cuda:1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", {"cuda:1": SimpleNamespace(multi_processor_count=7)}.get)
    assert deep_gemm.get_num_sms() == 7
    for wrong in (0, -2, 1 << 17):
        with pytest.raises(ProblemError, match=f"num_sms = {wrong}: must be a positive number of SMs"):
            deep_gemm.set_num_sms(wrong)
    for asked in (1, 6):
        deep_gemm.set_num_sms(asked)
        assert deep_gemm.get_num_sms() == asked


def test_a_buffer_of_a_group(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks make it together, of all of their experts."""
    group: Any = SimpleNamespace(size=lambda: 2)
    alone, asked = buffers.SymmetricBuffer.allocate, []

    def allocate(problem: Problem, arch: Arch, **options: Any) -> Any:
        asked.append(options.pop("group"))
        return alone(replace(problem, num_ranks=1), arch, **options, region=symmetric_buffer(problem, arch))

    monkeypatch.setattr(buffers.SymmetricBuffer, "allocate", allocate)
    made = deep_gemm.get_symm_buffer_for_sm90_mega_moe(group, *SHAPE, combine="e4m3")
    assert asked == [group] and made.group is group and made.problem == replace(PROBLEM, num_ranks=2, combine="e4m3")
    assert deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE).symmetric.group is None
    called: list[Any] = []
    monkeypatch.setattr(made, "kernel", lambda *given: called.append(given) or (lambda y: None))
    w, y, stats = random_weights(made.problem, 0, 0), torch.zeros(5, 256, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.int32)
    l1, l2 = deep_gemm.transform_weights_for_mega_moe_sm90((w.fc1, w.fc1_sf), (w.fc2, w.fc2_sf))
    shifted = torch.empty(l1[1].numel() + 1)[1:].view(l1[1].shape)  # FP32 scales may begin anywhere
    deep_gemm.fp8_mega_moe(y, (l1[0], shifted), l2, made, stats[:2], [128, 128, 128])  # type: ignore[arg-type]
    assert called[0][0].fc1_sf is shifted and called[0][1].shape == (2,)
    with pytest.raises(ProblemError, match=r"cumulative_local_expert_recv_stats.shape"):
        deep_gemm.fp8_mega_moe(y, l1, l2, made, stats)
    with pytest.raises(ProblemError, match="base = 'given': must be None: a buffer has memory of its own"):
        deep_gemm.SymmBuffer(OneRank(), *SHAPE, mma_type="fp8xfp8", base=made)  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match="use_fp8_dispatch = False: must be True: tokens travel in E4M3"):
        deep_gemm.get_symm_buffer_for_sm90_mega_moe(OneRank(), *SHAPE, use_fp8_dispatch=False)


def test_experts_have_scales_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each slot that of its expert; a masked one is left as it is."""
    seen: list[list[list[float]]] = []
    with simulated_hopper(monkeypatch, tmp_path, SM100):
        buffer = deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE)
        monkeypatch.setattr("megamoe_dsl.compat.deep_gemm.pre_dispatch.check_layout", lambda *given: seen.append(given[5].tolist()))
        monkeypatch.setattr(buffer, "pre_dispatch", lambda: lambda given: None)
        x, _, weights = TOKENS
        idx, views = torch.tensor([[-1, 3], [0, 2]], dtype=torch.int32), (buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights)
        scales = torch.tensor([2.0, 3.0, 5.0, 7.0])
        deep_gemm.mega_moe_pre_dispatch(x, idx, weights[:2], *views, 2, expert_scales=scales)
        assert seen == [[[3.0, 21.0], [6.0, 15.0]]]
        of_ranks = replace(buffer.problem, num_ranks=2)
        with monkeypatch.context() as patch:
            patch.setattr(buffer, "problem", of_ranks)  # those of all of them
            deep_gemm.mega_moe_pre_dispatch(x, idx, weights[:2], *views, 2, expert_scales=scales)
        for wrong in (scales[:3], scales.double()):
            with pytest.raises(ProblemError, match="expert_scales"):
                deep_gemm.mega_moe_pre_dispatch(x, idx, weights[:2], *views, 2, expert_scales=wrong)
        for options, message in (
            ({"mma_type": "mxf4xmxf4"}, "mma_type = 'mxf4xmxf4': must be fp8xfp4, as the buffer's"),
            ({"buf_x_scales": scales}, "buf_x_scales = 'given': must be None"),
        ):
            with pytest.raises(ProblemError, match=message):
                deep_gemm.mega_moe_pre_dispatch(x, idx, weights[:2], *views, 2, **options)


def test_experts_of_32_bits_are_given_as_64(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[int] = []
    with simulated_hopper(monkeypatch, tmp_path, SM100):
        buffer = deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE)
        monkeypatch.setattr(buffer, "pre_dispatch", lambda: lambda given: seen.extend((ctypes.c_int64 * 4).from_address(given[2])))
        x, _, weights = TOKENS
        idx, views = torch.tensor([[-1, 3], [0, 2]], dtype=torch.int32), (buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights)
        deep_gemm.mega_moe_pre_dispatch(x, idx, weights[:2], *views, 2)
        assert seen == [-1, 3, 0, 2]
        with pytest.raises(ProblemError, match=r"num_tokens = 3: must be at most x\.shape"):
            deep_gemm.mega_moe_pre_dispatch(x[:2], idx, weights[:2], *views, 3)


def test_weights_that_no_transform_returns() -> None:
    l1, l2 = given()
    for pair in ((l1, (*l2, l2[1])), (l1[:1], l2[:1]), ((*l1, *l1), (*l2, *l2))):
        with pytest.raises(ProblemError, match=f"l2_weights = '{len(pair[1])} tensors beside {len(pair[0])} of l1_weights': must be what"):
            ordered(*pair)
    strided = torch.zeros(*l1[0].shape[:-1], 2 * l1[0].shape[-1], dtype=torch.uint8).view(torch.float8_e4m3fn)[..., ::2]
    assert strided.shape == l1[0].shape and strided.dtype == l1[0].dtype
    for wrong in (strided, l1[0].flatten(), l1[0].view(torch.uint8)):
        with pytest.raises(ProblemError, match=r"l1_weights\[0\] = .*contiguous, as transform_weights_for_mega_moe_sm90 returns it"):
            ordered((wrong, l1[1]), l2)


def record_pre_dispatch(buffer: deep_gemm.SymmBuffer) -> list[tuple[int, ...]]:
    """Arguments of launches from here on; the first top-k weight in place of its address, which is read at once."""
    launched: list[tuple[int, ...]] = []

    def launch(arguments: tuple[int, ...]) -> None:
        *others, weights, tokens = arguments
        launched.append((len(others), int(ctypes.c_float.from_address(weights).value), tokens))

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
    buffer.topk_idx.fill_(7)
    buffer.topk_weights.fill_(7)
    pre_dispatch(buffer, TOKENS)
    pre_dispatch(buffer, TOKENS, routed_scaling_factor=2.0)
    assert buffer.topk_idx[:5].eq(7).all() and buffer.topk_idx[5:].eq(-1).all()
    pre_dispatch(buffer, TOKENS, num_tokens=2)
    assert launched == [(3, 3, 5), (3, 6, 5), (3, 3, 2)]
    for name, masked in (("topk_idx", -1), ("topk_weights", 0)):
        rows = getattr(buffer, name)
        assert rows[:2].eq(7).all() and rows[2:].eq(masked).all()


@pytest.mark.parametrize(
    ("tokens", "message"), [(0, ""), (-1, "between 0 and"), (6, "at most x.shape"), (17, "between 0 and buf_topk_idx")]
)
def test_numbers_of_tokens_that_pre_dispatch_takes(buffer: deep_gemm.SymmBuffer, tokens: int, message: str) -> None:
    """From none on, which masks all rows of the buffer."""
    launched: list[int] = []
    buffer._pre_dispatch = lambda arguments: launched.append(arguments[-1])  # type: ignore[assignment]
    with pytest.raises(ProblemError, match=f"num_tokens = {tokens}: must be {message}") if message else nullcontext():
        pre_dispatch(buffer, TOKENS, num_tokens=tokens)
    assert launched == ([] if message else [0])
    assert message or buffer.topk_idx.eq(-1).all()


def test_tokens_are_those_of_x_and_experts_may_be_int32(buffer: deep_gemm.SymmBuffer) -> None:
    read: list[list[int]] = []
    buffer._pre_dispatch = lambda given: read.append([ctypes.c_int64.from_address(given[2] + 8 * n).value for n in range(4)])  # type: ignore[assignment]
    x, _, weights = TOKENS
    idx = torch.tensor([[1, -1], [3, 0], [0, 0], [0, 0], [0, 0]], dtype=torch.int32)
    pre_dispatch(buffer, (x[:2], idx, weights), num_tokens=2)
    assert read == [[1, -1, 3, 0]]
    with pytest.raises(ProblemError, match=r"num_tokens = 5: must be at most x.shape\[0\] = 2"):
        pre_dispatch(buffer, (x[:2], idx, weights))


@pytest.mark.parametrize(("which", "name"), [(0, "x_sf"), (1, "topk_idx"), (2, "topk_weights")])
def test_views_of_two_buffers(buffer: deep_gemm.SymmBuffer, which: int, name: str) -> None:
    other = deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE)
    with pytest.raises(ProblemError, match=f"buf_{name} = .*the {name} of the buffer that buf_x is of"):
        pre_dispatch(buffer, TOKENS, other, which=which, name=name)


def test_grids_are_even(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, num_sms in ((1, 2), (6, 6), (7, 6)):
        monkeypatch.setattr(buffers, "_asked", asked)
        assert deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE).target == Target(SM90, num_sms, "simulated")


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


def test_tokens_of_all_ranks_choose_the_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By their number on each rank, unless a bound is given."""
    bounds: list[int] = []
    with simulated_hopper(monkeypatch, tmp_path, SM100):
        buffer = deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE)
        monkeypatch.setattr(buffer, "kernel", lambda *given: bounds.append(given[-1]) or (lambda y: None))
        weights = weights_sm100("fp8xfp4")
        for options in ({"global_num_tokens": 3}, {"global_num_tokens": 0}, {"global_num_tokens": 3, "num_tokens_bound": 9}, {}):
            deep_gemm.fp8_fp4_mega_moe(torch.zeros(5, 256, dtype=torch.bfloat16), *weights, buffer, **options)
        with pytest.raises(ProblemError, match="global_num_tokens = 17: must be between 0 and the capacity of all ranks, 16"):
            deep_gemm.fp8_fp4_mega_moe(torch.zeros(5, 256, dtype=torch.bfloat16), *weights, buffer, global_num_tokens=17)
    assert bounds == [3, 1, 9, 16]


def weights_sm100(mma_type: str) -> tuple[Weights, Weights]:
    w = random_weights(replace(PROBLEM, recipe="fp8xfp4"), 0, 0)
    pairs = [
        (codes, sf.view(torch.int32).transpose(1, 2).contiguous().transpose(1, 2)) for codes, sf in ((w.fc1, w.fc1_sf), (w.fc2, w.fc2_sf))
    ]
    return deep_gemm.transform_weights_for_mega_moe(pairs[0], pairs[1], mma_type=mma_type)


FACTORS = torch.ones(4, 2)


@pytest.mark.parametrize("name", ["bf16_mega_moe", "get_block_m_for_mega_moe", "nvfp4_mega_moe", "transform_scales_for_mega_moe"])
def test_functions_of_the_wheel_that_do_nothing_here(name: str) -> None:
    with pytest.raises(ProblemError, match=f"function = '{name}': must be .*: (no|shared)"):
        getattr(deep_gemm, name)(1, 2, mma_type="nvfp4xnvfp4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shared_l1_weights": (FACTORS, FACTORS)}, "shared_l1_weights = 'given': must be None: shared experts"),
        ({"shared_l2_weights": (FACTORS, FACTORS)}, "shared_l2_weights = 'given'"),
        ({"use_x_scales": True}, "use_x_scales = True: must be False: no NVFP4 in the drop-in, MegaMoE has it"),
        ({"l1_alphas": FACTORS}, "l1_alphas = 'given': must be None: no NVFP4 in the drop-in, MegaMoE has it"),
        ({"l2_alphas": FACTORS}, "l2_alphas = 'given'"),
        ({"l2_act_scales": FACTORS}, "l2_act_scales = 'given'"),
        ({"weight_layout": "trtllm"}, "weight_layout = 'trtllm': must be 'megamoe'"),
        ({"post_expert_norm": True}, "post_expert_norm = True: must be False: no kernel here has a norm"),
        ({"post_expert_norm_weight": FACTORS}, "post_expert_norm_weight = 'given'"),
        ({"recipe": (1, 1, 16)}, r"recipe = \(1, 1, 16\): must be \(1, 1, 32\)"),
    ],
)
def test_what_the_wheel_has_and_no_kernel_here(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with simulated_hopper(monkeypatch, tmp_path, SM100):
        buffer = deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE)
        monkeypatch.setattr(buffer, "kernel", lambda *given: pytest.fail("launched"))
        with pytest.raises(ProblemError, match=message):
            deep_gemm.fp8_fp4_mega_moe(torch.zeros(5, 256, dtype=torch.bfloat16), *weights_sm100("fp8xfp4"), buffer, **options)


@pytest.mark.parametrize(
    ("arch", "mma_type", "recipe", "x"),
    [
        (SM90, "fp8xfp4", "fp8xfp8", torch.float8_e4m3fn),
        (SM90, "fp8xfp8", "fp8xfp8", torch.float8_e4m3fn),
        (SM90, "fp8xmxfp4", "fp8xmxfp4", torch.float8_e4m3fn),
        (SM100, "fp8xfp4", "fp8xfp4", torch.float8_e4m3fn),
        (SM100, "mxf4xmxf4", "mxf4xmxf4", torch.int8),
        (SM100, "fp8xfp8", "mxfp8xmxfp8", torch.float8_e4m3fn),
    ],
)
def test_formats_of_a_buffer(
    arch: Arch, mma_type: str, recipe: str, x: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packed = x == torch.int8
    with simulated_hopper(monkeypatch, tmp_path, arch):
        made = deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE, 0, not packed, mma_type, "situ", combine="e4m3", watchdog_ns=7)
        assert made.watchdog_ns == 7 and made.activation == "situ"
        assert (made.problem.recipe, made.problem.combine, made.x.dtype) == (recipe, "e4m3", x)
        assert made.x.shape == (16, 128 if packed else 256)
        for wrong in ("nvfp4xnvfp4", "bf16xbf16", "fp8xfp3"):
            with pytest.raises(ProblemError, match=f"mma_type = '{wrong}': must be one of fp8xfp4, .* on {arch.name}"):
                deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE, mma_type=wrong)
        with pytest.raises(ProblemError, match="use_fp8_dispatch"):
            deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE, use_fp8_dispatch=packed, mma_type=mma_type)


def test_a_buffer_is_of_one_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    y = torch.zeros(5, 256, dtype=torch.bfloat16)
    with simulated_hopper(monkeypatch, tmp_path):
        four, eight = (deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE, mma_type=one) for one in ("fp8xmxfp4", "fp8xfp8"))
        with pytest.raises(ProblemError, match="sym_buffer = 'one of fp8xmxfp4': must be one that fp8_mega_moe runs"):
            deep_gemm.fp8_mega_moe(y, *given(), four)
        with pytest.raises(ProblemError, match="sym_buffer = 'one of fp8xfp8': must be one that fp8_fp4_mega_moe runs"):
            deep_gemm.fp8_fp4_mega_moe(y, *given(), eight)


def test_a_rank_has_its_part_of_all_tokens_rounded_up() -> None:
    """Of five tokens on four ranks, two; a bound of the caller's own counts for more."""
    problem, y = replace(PROBLEM, num_ranks=4), torch.zeros(1, 256)
    assert [_bound(problem, y, None, tokens) for tokens in (0, 4, 5, 64, None)] == [1, 1, 2, 16, 16]
    assert _bound(problem, y, 3, 64) == 3
