"""DeepGEMM's calls on a simulated GPU: results, weights, statistics, options, errors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from simulated_deep_gemm import OneRank, simulated_hopper, visible

from megamoe_dsl.arch import SM90, SM100, Arch
from megamoe_dsl.cases import Case, random_case, random_weights
from megamoe_dsl.compat import deep_gemm
from megamoe_dsl.compat.deep_gemm import buffer as buffers
from megamoe_dsl.compat.deep_gemm.utils import per_token_cast_to_fp4, per_token_cast_to_fp8
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import ExpertWeights, quantize_e4m3, quantize_e4m3_f32, unpack_e2m1
from simulated_gpu import SimulatedKernel
from sweep import rarely

PROBLEM = Problem(256, 128, 4, 2, max_tokens_per_rank=16, recipe="fp8xfp8", activation_clamp=10.0)
SHAPE = (4, 16, 2, 256, 128)
TOKENS = 5


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="module")
def case() -> Case:
    return random_case(PROBLEM, [TOKENS], 0, mask=0.2)


@pytest.fixture
def gpu(kernels: Path) -> Iterator[type[SimulatedKernel]]:
    with pytest.MonkeyPatch.context() as patch, simulated_hopper(patch, kernels) as found:
        yield found


@pytest.fixture
def buffer(gpu: type[SimulatedKernel]) -> deep_gemm.SymmBuffer:
    return deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE)


def transformed(weights: ExpertWeights) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    return deep_gemm.transform_weights_for_mega_moe_sm90((weights.fc1, weights.fc1_sf), (weights.fc2, weights.fc2_sf))


def copied(weights: ExpertWeights) -> ExpertWeights:
    """For a reload in place: what has one order only is passed through."""
    return ExpertWeights(weights.fc1.clone(), weights.fc1_sf.clone(), weights.fc2.clone(), weights.fc2_sf.clone())


def load(buffer: deep_gemm.SymmBuffer, case: Case) -> None:
    tokens = case.x[0].shape[0]
    buffer.x[:tokens].copy_(case.x[0])
    buffer.x_sf[:tokens].copy_(case.x_sf[0])
    buffer.topk_idx[:tokens].copy_(case.topk_idx[0])
    buffer.topk_weights[:tokens].copy_(case.topk_weights[0])


def run(gpu: type[SimulatedKernel], buffer: deep_gemm.SymmBuffer, y: torch.Tensor, l1, l2, **options) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """A call, whose kernel may touch what is visible once it is prepared."""
    given = {"recipe": (128, 128, 128), "activation": "swiglu", "activation_clamp": 10.0, "fast_math": True, **options}
    prepare = buffer.kernel

    def prepared(*arguments: object) -> object:
        kernel = prepare(*arguments)
        gpu.tensors = visible(buffer, y=y)
        return kernel

    buffer.kernel = prepared  # type: ignore[method-assign]
    try:
        deep_gemm.fp8_mega_moe(y, l1, l2, buffer, **given)
    finally:
        buffer.kernel = prepare  # type: ignore[method-assign]
    return y


def new_y(tokens: int = TOKENS) -> torch.Tensor:
    return torch.full((tokens, PROBLEM.hidden), float("nan"), dtype=torch.bfloat16)


def test_the_references_bits(gpu: type[SimulatedKernel], buffer: deep_gemm.SymmBuffer, case: Case) -> None:
    assert isinstance(buffer, deep_gemm.SM90SymmBuffer) and buffer.buffer.dtype == torch.int8
    assert (buffer.x.shape, buffer.x_sf.shape, buffer.topk_idx.shape) == ((16, 256), (16, 2), (16, 2))
    weights, stats = transformed(case.weights[0]), torch.full((4,), 7, dtype=torch.int32)
    load(buffer, case)
    y = run(gpu, buffer, new_y(), *weights, cumulative_local_expert_recv_stats=stats)
    assert torch.equal(y, case.reference().y[0])
    received = torch.stack([(case.topk_idx[0] == expert).sum() for expert in range(4)])
    assert torch.equal(stats, received.int() + 7)


def test_the_limit_of_waits_is_the_callers(gpu: type[SimulatedKernel], case: Case) -> None:
    limit = 135 * 10**9 + 1
    buffer = deep_gemm.get_symm_buffer_for_sm90_mega_moe(OneRank(), *SHAPE, watchdog_ns=limit)
    load(buffer, case)
    run(gpu, buffer, new_y(), *transformed(case.weights[0]))
    ((kernel,),) = (kernels.values() for kernels in buffer._kernels.values())
    assert kernel.kernels[0].arguments.values.watchdog_ns == limit


def test_torchs_default_device_does_not_matter(gpu: type[SimulatedKernel], case: Case) -> None:
    """DeepGEMM's tests set it to CUDA."""
    y, stats = new_y(), torch.zeros(4, dtype=torch.int32)
    with torch.device("meta"):
        buffer = deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE)
        load(buffer, case)
        run(gpu, buffer, y, *transformed(case.weights[0]), cumulative_local_expert_recv_stats=stats)
    assert torch.equal(y, case.reference().y[0]) and stats.sum() == (case.topk_idx[0] >= 0).sum()


def test_kernels_can_be_had_ahead(buffer: deep_gemm.SymmBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(buffers, "compile_ahead", lambda configs, store: asked.extend(configs))
    assert buffer.prepare(10.0) == len(asked) == len(set(asked))
    assert {buffer._config(buffer.layer("swiglu", 10.0, True, False), bound) for bound in (1, TOKENS, 16)} < set(asked)


def test_a_bound_chooses_the_kernel(gpu: type[SimulatedKernel], buffer: deep_gemm.SymmBuffer, case: Case) -> None:
    weights = transformed(case.weights[0])
    load(buffer, case)
    wide = run(gpu, buffer, new_y(), *weights)
    tile = gpu.launched[-1].block_m  # type: ignore[attr-defined]
    assert torch.equal(run(gpu, buffer, new_y(), *weights, num_tokens_bound=TOKENS), wide)
    assert gpu.launched[-1].block_m <= tile  # type: ignore[attr-defined]


def test_two_layers_on_one_buffer_and_weights_that_change(gpu: type[SimulatedKernel], buffer: deep_gemm.SymmBuffer, case: Case) -> None:
    first, other = case.weights[0], random_weights(PROBLEM, 0, 5)
    one, two = transformed(copied(first)), transformed(other)
    load(buffer, case)
    want = case.reference().y[0]
    assert torch.equal(run(gpu, buffer, new_y(), *one), want)
    second = run(gpu, buffer, new_y(), *two)
    changed = replace(case, weights=[other], exact=False)
    assert ((second.double() - changed.reference().y[0].double()).abs() <= changed.bound()[0]).all()
    for target, source in zip((*one[0], *one[1]), (*two[0], *two[1]), strict=True):
        target.copy_(source)  # a reload in place
    assert torch.equal(run(gpu, buffer, new_y(), *one), second)
    assert len(buffer._kernels) == 2
    buffer.forget_weights(two[0])
    assert len(buffer._kernels) == 1


def test_bf16_tokens_and_padding(gpu: type[SimulatedKernel], buffer: deep_gemm.SymmBuffer, case: Case) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, PROBLEM.hidden, generator=generator).bfloat16()
    idx, weights = case.topk_idx[0].clone(), case.topk_weights[0]
    buffer.topk_idx.fill_(1)
    gpu.tensors = visible(buffer, x=x, topk_idx=idx, topk_weights=weights)
    deep_gemm.mega_moe_pre_dispatch_sm90(
        x, idx, weights, buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights, num_tokens=TOKENS, group_size=128
    )
    codes, scales = quantize_e4m3_f32(x)
    assert torch.equal(buffer.x[:TOKENS].view(torch.uint8), codes.view(torch.uint8)) and torch.equal(buffer.x_sf[:TOKENS], scales)
    assert torch.equal(buffer.topk_idx[:TOKENS], idx) and (buffer.topk_idx[TOKENS:] == -1).all() and not buffer.topk_weights[TOKENS:].any()
    y = run(gpu, buffer, new_y(TOKENS + 3), *transformed(case.weights[0]))
    given = Case(PROBLEM, [codes], [scales], [idx], [weights], case.weights, exact=False)
    assert ((y[:TOKENS].double() - given.reference().y[0].double()).abs() <= given.bound()[0]).all() and not y[TOKENS:].any()


def test_no_tokens(gpu: type[SimulatedKernel], buffer: deep_gemm.SymmBuffer, case: Case) -> None:
    weights = transformed(case.weights[0])
    assert run(gpu, buffer, new_y(0), *weights).shape == (0, 256)
    none = (torch.empty(0, 256, dtype=torch.bfloat16), torch.empty(0, 2, dtype=torch.int32), torch.empty(0, 2))
    load(buffer, case)
    gpu.tensors = visible(buffer)
    deep_gemm.mega_moe_pre_dispatch_sm90(*none, buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights, num_tokens=0)
    assert not run(gpu, buffer, new_y(1), *weights).any()  # SGLang's one row that nobody reads


def test_a_graph_is_captured_after_the_first_call(
    gpu: type[SimulatedKernel], buffer: deep_gemm.SymmBuffer, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = transformed(case.weights[0])
    load(buffer, case)
    with monkeypatch.context() as patch, pytest.raises(ProblemError, match="call once before"):
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        run(gpu, buffer, new_y(), *weights)
    with monkeypatch.context() as patch, pytest.raises(ProblemError, match="call once before"):
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        buffer.pre_dispatch()
    run(gpu, buffer, new_y(), *weights)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert torch.equal(run(gpu, buffer, new_y(), *weights), case.reference().y[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": (1, 1, 32)}, r"recipe = \(1, 1, 32\): must be \(128, 128, 128\)"),
        ({"activation": "gelu"}, "activation = 'gelu'"),
        ({"activation_clamp": -1.0}, "activation_clamp = -1.0"),
        ({"num_tokens_bound": 4}, r"num_tokens_bound = 4: must be between y.shape\[0\] = 5 and the buffer's capacity 16"),
        ({"cumulative_local_expert_recv_stats": torch.zeros(3, dtype=torch.int32)}, "cumulative_local_expert_recv_stats.shape"),
    ],
)
def test_bad_options(gpu: type[SimulatedKernel], buffer: deep_gemm.SymmBuffer, case: Case, options: dict, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        run(gpu, buffer, new_y(), *transformed(case.weights[0]), **options)


def test_bad_tensors(gpu: type[SimulatedKernel], buffer: deep_gemm.SymmBuffer, case: Case) -> None:
    weights, w = transformed(case.weights[0]), case.weights[0]
    for y, message in ((new_y(17), r"y.shape\[0\] = 17"), (new_y().float(), "y.dtype")):
        with pytest.raises(ProblemError, match=message):
            run(gpu, buffer, y, *weights)
    with pytest.raises(ProblemError, match=r"l1_weights\[0\] = .*as transform_weights_for_mega_moe_sm90 returns it"):
        run(gpu, buffer, new_y(), (w.fc1, w.fc1_sf), weights[1])
    with pytest.raises(ProblemError, match=r"l2_weights\[1\] = 'torch.float64"):
        run(gpu, buffer, new_y(), weights[0], (weights[1][0], weights[1][1].double()))
    others = (buffer.x_sf, buffer.topk_idx, buffer.topk_weights)
    tokens = (torch.zeros(5, 256, dtype=torch.bfloat16), case.topk_idx[0], case.topk_weights[0])
    with pytest.raises(ProblemError, match="buf_x = 'a tensor at"):
        deep_gemm.mega_moe_pre_dispatch_sm90(*tokens, buffer.x[1:], *others, num_tokens=5)
    with pytest.raises(ProblemError, match="group_size = 32: must be 128"):
        deep_gemm.mega_moe_pre_dispatch_sm90(*tokens, buffer.x, *others, num_tokens=5, group_size=32)
    with pytest.raises(ProblemError, match="num_tokens = 17"):
        deep_gemm.mega_moe_pre_dispatch_sm90(*tokens, buffer.x, *others, num_tokens=17)


def test_bad_buffers(gpu: type[SimulatedKernel]) -> None:
    for options, message in (
        ({"num_shared_experts": 1}, "num_shared_experts = 1"),
        ({"mma_type": "mxf4xmxf4"}, "mma_type = 'mxf4xmxf4'"),
        ({"use_fp8_dispatch": False}, "use_fp8_dispatch"),
        ({"activation": "gelu"}, "activation"),
        ({"watchdog_ns": 0}, "watchdog_ns = 0: must be"),
    ):
        with pytest.raises(ProblemError, match=message):
            deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE, **options)
    with pytest.raises(ProblemError, match="hidden = 200"):
        deep_gemm.get_symm_buffer_for_sm90_mega_moe(OneRank(), 4, 16, 2, 200, 128)


def test_casts() -> None:
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    for found, want in zip(per_token_cast_to_fp8(x, use_ue8m0=False, gran_k=128), quantize_e4m3_f32(x), strict=True):
        assert torch.equal(found.view(torch.uint8), want.view(torch.uint8))
    _, words = per_token_cast_to_fp8(x, use_ue8m0=True, gran_k=32, use_packed_ue8m0=True)
    assert words.dtype == torch.int32 and torch.equal(words.view(torch.uint8), quantize_e4m3(x)[1])
    with pytest.raises(ProblemError, match="use_packed_ue8m0"):
        per_token_cast_to_fp8(x, use_ue8m0=True)
    on_meta = per_token_cast_to_fp8(x.to("meta"), use_ue8m0=False)  # as in a CUDA graph, the host looks at no value
    assert [one.shape for one in on_meta] == [(3, 256), (3, 2)]


TIES = ((0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6), (-0.25, 0), (-0.75, 10), (-5.0, 14))


def test_casts_to_e2m1() -> None:
    """Scale 1 of a block with 6.  By hand from DeepGEMM's `per_token_cast_to_fp4`: ties to the even code, no minus zero, amax 1e-4."""
    x = torch.zeros(2, 128)
    x[0, : len(TIES)] = torch.tensor([value for value, _ in TIES])
    x[0, 31] = 6.0
    codes, words = per_token_cast_to_fp4(x, use_ue8m0=True, gran_k=32, use_packed_ue8m0=True)
    assert (codes.dtype, codes.shape, words.dtype, words.shape) == (torch.int8, (2, 64), torch.int32, (2, 1))
    found = unpack_e2m1(codes.view(torch.uint8))
    assert found[0, : len(TIES)].tolist() == [code for _, code in TIES] and found[0, 31] == 7 and not found[1].any()
    least = 127 - 15  # 2^-15 is the power of two above 1e-4 / 6
    assert words.view(torch.uint8).tolist() == [[127, least, least, least], [least] * 4]
    for options in ({"gran_k": 128}, {"gran_k": 32, "use_packed_ue8m0": False}):
        with pytest.raises(ProblemError, match=r"must be (32|True): a buffer"):
            per_token_cast_to_fp4(x, **{"use_ue8m0": True, "use_packed_ue8m0": True, **options})


def for_deep_gemm(arch: Arch, w: ExpertWeights, mma_type: str) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Transformed, with biases."""
    l1, l2 = (w.fc1, w.fc1_sf, w.fc1_bias), (w.fc2, w.fc2_sf, w.fc2_bias)
    if not arch.has_tensor_memory:
        return deep_gemm.transform_weights_for_mega_moe_sm90(l1, l2)
    l1, l2 = ((codes, sf.view(torch.int32), bias) for codes, sf, bias in (l1, l2))
    return deep_gemm.transform_weights_for_mega_moe(l1, l2, "swigluoai", mma_type)


@pytest.mark.parametrize(
    ("arch", "mma_type", "recipe"),
    [
        (SM90, "fp8xmxfp4", "fp8xmxfp4"),
        rarely(SM100, "mxf4xmxf4", "mxf4xmxf4"),
        rarely(SM100, "fp8xfp8", "mxfp8xmxfp8"),
        rarely(SM100, "fp8xfp4", "fp8xfp4"),
    ],
)
def test_what_kernels_here_have_beside_deep_gemm(
    arch: Arch, mma_type: str, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MXFP4 weights on Hopper, W4A4 and MXFP8, with results in E4M3, biases and gpt-oss's activation in one call: the reference's bits,
    with other biases, too."""
    problem = replace(PROBLEM, recipe=recipe, activation="swigluoai", activation_clamp=7.0, biases=True, combine="e4m3")
    given = random_case(problem, [TOKENS], 0, mask=0.2)
    l1, l2 = for_deep_gemm(arch, given.weights[0], mma_type)
    with simulated_hopper(monkeypatch, tmp_path, arch) as gpu:
        buffer = deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE, mma_type=mma_type, activation="swigluoai", combine="e4m3")
        for name in ("x", "x_sf", "topk_idx", "topk_weights"):
            mine, theirs = getattr(buffer, name), getattr(given, name)[0]
            mine[:TOKENS].copy_(theirs if theirs.dtype.is_floating_point else theirs.view(mine.dtype))
        y, prepare = new_y(), buffer.kernel
        monkeypatch.setattr(buffer, "kernel", lambda *options: [prepare(*options), setattr(gpu, "tensors", visible(buffer, y=y))][0])
        deep_gemm.fp8_fp4_mega_moe(y, l1, l2, buffer, activation="swigluoai", activation_clamp=7.0)
        assert torch.equal(y, given.reference().y[0])
        deep_gemm.fp8_fp4_mega_moe(y, (*l1[:2], l1[2] + 1), l2, buffer, activation="swigluoai", activation_clamp=7.0)
    others = replace(given.weights[0], fc1_bias=given.weights[0].fc1_bias + 1)
    assert torch.equal(y, replace(given, weights=[others]).reference().y[0])


def test_tokens_of_4_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel makes of BF16 tokens is what DeepGEMM's cast makes, but for the sign of zero; experts have factors."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, PROBLEM.hidden, generator=generator).bfloat16()
    idx = torch.tensor([[0, 1], [2, 3], [-1, 3], [1, -1], [3, 0]])
    factors = torch.tensor([1.0, 2.0, 3.0, 4.0])
    with simulated_hopper(monkeypatch, tmp_path, SM100) as gpu:
        buffer = deep_gemm.get_symm_buffer_for_mega_moe(OneRank(), *SHAPE, mma_type="mxf4xmxf4")
        views = (buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights)
        weights, multiply = torch.ones(TOKENS, 2), torch.where
        kept: list[torch.Tensor] = []

        def where(*given: torch.Tensor) -> torch.Tensor:
            kept.append(multiply(*given))
            gpu.tensors = visible(buffer, x=x, topk_idx=idx, topk_weights=kept[-1])
            return kept[-1]

        monkeypatch.setattr(torch, "where", where)
        deep_gemm.mega_moe_pre_dispatch(x, idx, weights, *views, TOKENS, 32, "mxf4xmxf4", None, factors)
        codes, words = per_token_cast_to_fp4(x, use_ue8m0=True, gran_k=32, use_packed_ue8m0=True)
        found = unpack_e2m1(buffer.x[:TOKENS].view(torch.uint8))
        assert torch.equal(found.masked_fill(found == 8, 0), unpack_e2m1(codes.view(torch.uint8)))
        assert torch.equal(buffer.x_sf[:TOKENS], words)
        assert buffer.topk_weights[:TOKENS].tolist() == [[1, 2], [3, 4], [1, 4], [2, 1], [4, 1]]
        for options, message in (
            ({"mma_type": "fp8xfp4"}, "mma_type = 'fp8xfp4': must be mxf4xmxf4, as the buffer's"),
            ({"mma_type": "mxf4xmxf4", "buf_x_scales": factors}, "buf_x_scales = 'given'"),
        ):
            with pytest.raises(ProblemError, match=message):
                deep_gemm.mega_moe_pre_dispatch(x, idx, weights, *views, TOKENS, **options)


HEAD, TAIL = "y l1_weights l2_weights sym_buffer", "activation activation_clamp fast_math"
STATS = "cumulative_local_expert_recv_stats recipe"
NORM = "post_expert_norm post_expert_norm_weight post_expert_norm_eps post_expert_norm_weight_first"
SCALES = "use_x_scales l1_alphas l2_alphas l2_act_scales weight_layout global_num_tokens"
STAGE = "x topk_idx topk_weights buf_x buf_x_sf buf_topk_idx buf_topk_weights num_tokens group_size"
MAKE = "group num_experts num_max_tokens_per_rank num_topk hidden intermediate_hidden"
WHEEL = {
    "SymmBuffer": f"{MAKE} num_shared_experts mma_type activation base",
    "SM90SymmBuffer": f"{MAKE} use_fp8_dispatch activation",
    "get_symm_buffer_for_mega_moe": f"{MAKE} num_shared_experts use_fp8_dispatch mma_type activation",
    "get_symm_buffer_for_sm90_mega_moe": f"{MAKE} use_fp8_dispatch activation",
    "transform_weights_for_mega_moe_sm90": "l1_weights l2_weights",
    "transform_weights_for_mega_moe": "l1_weights l2_weights activation mma_type",
    "transform_sf_into_required_layout": "sf mn k recipe num_groups is_sfa disable_ue8m0_cast psum_layout",
    "fp8_mega_moe": f"{HEAD} {STATS} {TAIL} num_tokens_bound",
    "fp8_fp4_mega_moe": f"{HEAD} shared_l1_weights shared_l2_weights {STATS} {TAIL} {SCALES} {NORM}",
    "mega_moe_pre_dispatch": f"{STAGE} mma_type buf_x_scales expert_scales",
    "mega_moe_pre_dispatch_sm90": f"{STAGE} routed_scaling_factor",
    "utils.per_token_cast_to_fp8": "x use_ue8m0 gran_k use_packed_ue8m0",
    "utils.per_token_cast_to_fp4": "x use_ue8m0 gran_k use_packed_ue8m0",
}
"""Parameters of the wheel's functions, 0.2.5, in order."""
CALL: dict[str, object] = {"activation": "swiglu", "fast_math": True}
NO_NORM = {"post_expert_norm": False, "post_expert_norm_eps": 1e-6, "post_expert_norm_weight_first": False}
SM90_BUFFER, CAST = {"use_fp8_dispatch": True, "activation": "swiglu"}, {"gran_k": 128, "use_packed_ue8m0": False}
BUFFER = {"num_shared_experts": 0, "mma_type": "fp8xfp4", "activation": "swiglu"}
DEFAULTS: dict[str, dict[str, object]] = {
    **dict.fromkeys(("SymmBuffer", "get_symm_buffer_for_mega_moe"), BUFFER),
    **dict.fromkeys(("SM90SymmBuffer", "get_symm_buffer_for_sm90_mega_moe"), SM90_BUFFER),
    "transform_weights_for_mega_moe": {"activation": "swiglu", "mma_type": "fp8xfp4"},
    "transform_sf_into_required_layout": {"disable_ue8m0_cast": False},
    "fp8_mega_moe": {"recipe": (128, 128, 128), **CALL},
    "fp8_fp4_mega_moe": {"recipe": (1, 1, 32), **CALL, "use_x_scales": False, "weight_layout": "megamoe", **NO_NORM},
    "mega_moe_pre_dispatch": {"group_size": 32, "mma_type": "fp8xfp4"},
    "mega_moe_pre_dispatch_sm90": {"group_size": 128, "routed_scaling_factor": 1.0},
    **dict.fromkeys(("utils.per_token_cast_to_fp8", "utils.per_token_cast_to_fp4"), CAST),
}
"""What a call may leave out; other defaults are None."""


@pytest.mark.parametrize("name", WHEEL)
def test_signatures_are_the_wheels(name: str) -> None:
    """Others than the wheel's are given by name alone."""
    parameters = inspect.signature(attrgetter(name)(deep_gemm)).parameters.values()
    assert [one.name for one in parameters if one.kind == one.POSITIONAL_OR_KEYWORD] == WHEEL[name].split()
    named = [one for one in parameters if one.kind == one.POSITIONAL_OR_KEYWORD and one.default not in (None, one.empty)]
    assert {one.name: one.default for one in named} == DEFAULTS.get(name, {})
