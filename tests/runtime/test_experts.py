"""The operator of a MoE layer on one GPU: what it refuses before a launch, and what it is to torch.compile."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from megamoe_dsl import ProblemError, moe
from megamoe_dsl.quant import quantize_weight_e4m3
from megamoe_dsl.runtime import experts
from megamoe_dsl.runtime.custom_op import check_no_gradient
from megamoe_dsl.runtime.top_experts import cut, top_experts

FP8 = torch.float8_e4m3fn


def arguments(**changes: Any) -> dict[str, Any]:
    """Of 6 tokens, 4 experts, top 2."""
    made = {
        "x": torch.zeros(6, 256, dtype=torch.bfloat16),
        "w1": torch.zeros(4, 512, 256, dtype=FP8),
        "w1_sf": torch.ones(4, 4, 2),
        "w2": torch.zeros(4, 256, 256, dtype=FP8),
        "w2_sf": torch.ones(4, 2, 2),
        "topk_idx": torch.zeros(6, 2, dtype=torch.int64),
        "topk_weights": torch.ones(6, 2),
    }
    return {**made, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(6, 2, 128)}, r"x.shape = \(6, 2, 128\): must be \(tokens, 256\)"),
        ({"x": torch.zeros(6, 256)}, "x.dtype = torch.float32: must be torch.bfloat16"),
        ({"w1": torch.zeros(512, 256, dtype=FP8)}, r"w1.shape = \(512, 256\): must be \(experts, 2 \* intermediate, hidden\)"),
        ({"w1_sf": torch.ones(4, 2, 2)}, r"w1_sf.shape = \(4, 2, 2\): must be \(4, 4, 2\)"),
        ({"w2": torch.zeros(4, 256, 128, dtype=FP8)}, r"w2.shape = \(4, 256, 128\): must be \(4, 256, 256\)"),
        ({"w2_sf": torch.ones(4, 2, 2, dtype=torch.float64)}, "w2_sf.dtype"),
        ({"topk_idx": torch.zeros(6, 2)}, "topk_idx.dtype = torch.float32: must be torch.int64 or torch.int32"),
        ({"topk_idx": torch.zeros(12, dtype=torch.int64)}, r"topk_idx.shape = \(12,\): must be \(tokens, topk\)"),
        ({"topk_weights": torch.ones(6, 3)}, r"topk_weights.shape = \(6, 3\): must be \(6, 2\)"),
        ({"topk_weights": None}, "topk_idx, topk_weights = None: must be tensors, or router_logits given"),
        ({"topk": 2}, "topk = 2: must be None without router_logits or router"),
        ({"score_bias": torch.zeros(4)}, "score_bias = 'a tensor': must be None without router_logits or router"),
        ({"token_ids": torch.zeros(6).long()}, "token_ids = 'a tensor': must be None without router_logits or router"),
        ({"scores": "sigmoid"}, "scores = 'sigmoid': must be softmax without router_logits or router"),
        ({"weight_scale": 2.5}, "weight_scale = 2.5: must be 1.0 without router_logits or router"),
        ({"replica_shift": 3}, "replica_shift = 3: must be 0 without router_logits or router"),
        (
            {"w1": torch.zeros(4, 512, 256), "w1_sf": None},
            "w1.dtype = torch.float32: must be torch.float8_e4m3fn or torch.uint8 or",
        ),
        ({"main_grads": 3}, "main_grads = 3: must be None, or two tensors"),
        ({"main_grads": (torch.zeros(1), torch.zeros(1))}, r"main_grads\[0\].shape = \(1,\): must be \(4, 512, 256\)"),
        ({"main_grads": (torch.zeros(4, 512, 256, device="meta"),) * 2}, r"main_grads\[0\]\.device = .*meta.*: must be cpu"),
        ({"x": torch.zeros(1, 256).bfloat16().expand((1 << 26) + 1, 256)}, r"x.shape\[0\] = 67108865: must be between 0 and 67108864"),
        ({"quantized": (1, 2)}, r"quantized = \(1, 2\): must be None, or what quantize_experts makes"),
        ({"router_logits": torch.zeros(6, 4), "topk": 2}, "topk_idx = 'a tensor': must be None with router_logits"),
        ({"router_logits": torch.zeros(6, 4), "topk": 2, "topk_idx": None}, "= 'a tensor': must be None with router_logits"),
        ({"preactivations": torch.zeros(12, 256, dtype=torch.bfloat16)}, r"preactivations.shape = \(12, 256\): must be \(12, 512\)"),
        ({"w1_sf": None}, "w1_sf = None: must be scales beside torch.float8_e4m3fn; only torch.bfloat16 has none"),
        (
            {"w1": torch.zeros(4, 512, 256).bfloat16(), "w2": torch.zeros(4, 256, 256).bfloat16()},
            "w1_sf = .*: must be None: bf16xbf16 has no scales",
        ),
        ({"w1": torch.zeros(4, 512, 256, dtype=torch.bfloat16), "w1_sf": None}, "w2.dtype = torch.float8_e4m3fn: must be torch.bfloat16"),
        ({"recipe": "mxf4xmxf4"}, "w1.dtype = torch.float8_e4m3fn: must be torch.uint8"),
        ({"recipe": "w4a4"}, "recipe = 'w4a4': must be one of "),
        ({"gate_up": "mixed"}, "gate_up = 'mixed': must be one of gate_first"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        moe(**arguments(**changes))


def beside_32_bytes(*shape: int) -> torch.Tensor:
    """uint8 that begins at a multiple of 16 bytes alone."""
    memory = torch.zeros(math.prod(shape) + 64, dtype=torch.uint8)
    return memory[-memory.data_ptr() % 32 + 16 :][: math.prod(shape)].view(shape)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factors": None}, "factors = None: must be those of expert_factors beside w1_sf with a scale for every 16 values"),
        ({"factors": torch.ones(5, 3)}, r"factors.shape = \(5, 3\): must be \(5, 4\)"),
        ({"factors": torch.ones(4, 5).T}, r"factors.stride\(\) = \(1, 5\): must be contiguous"),
        ({"factors": torch.ones(5, 4).double()}, "factors.dtype = torch.float64: must be torch.float32"),
        ({"w1_sf": torch.zeros(4, 2, 512, dtype=torch.int32)}, r"w1_sf.shape = \(4, 2, 512\): must be \(4, 4, 512\)"),
        ({"w2_sf": torch.zeros(4, 256, 16, dtype=FP8)}, "w2_sf.dtype = torch.float8_e4m3fn: must be torch.int32"),
        ({"w1": torch.zeros(4, 512, 256, dtype=FP8)}, "factors = 'a tensor': must be None but with nvfp4xnvfp4"),
        ({"w1": beside_32_bytes(4, 512, 128)}, r"w1.data_ptr\(\) = \d+: must be a multiple of 32"),
        ({"w2": beside_32_bytes(4, 256, 128)}, r"w2.data_ptr\(\) = \d+: must be a multiple of 32"),
    ],
)
def test_factors_come_with_nvfp4(changes: dict[str, Any], message: str) -> None:
    codes = {name: torch.zeros(4, rows, 128, dtype=torch.uint8) for name, rows in (("w1", 512), ("w2", 256))}
    words = {name: torch.zeros(4, 4, rows, dtype=torch.int32) for name, rows in (("w1_sf", 512), ("w2_sf", 256))}
    with pytest.raises(ProblemError, match=message):
        moe(**arguments(**{**codes, **words, "factors": torch.ones(5, 4), **changes}))


@pytest.mark.parametrize("name", ["x", "w1", "w1_sf", "w2", "w2_sf", "topk_weights", "preactivations", "factors"])
def test_there_is_no_gradient(name: str) -> None:
    """Of any tensor of a layer in FP8: y would be without it."""
    given = arguments()
    given[name] = given.get(name, torch.zeros(12, 512)).float().requires_grad_()
    with pytest.raises(ProblemError, match=rf"^{name}\.requires_grad = True: must be False, or the call under torch.no_grad\(\)"):
        moe(**given)
    with torch.no_grad():
        check_no_gradient((name,), (given[name],))


@pytest.mark.parametrize("name", ["router_logits", "score_bias"])
def test_fp8_layers_have_no_gradient_of_logits_and_no_layer_one_of_the_bias(name: str) -> None:
    given = {"topk_idx": None, "topk_weights": None, "router_logits": torch.zeros(6, 4), "score_bias": torch.zeros(4), "topk": 2}
    given[name].requires_grad_()  # type: ignore[attr-defined]
    with pytest.raises(ProblemError, match=rf"^{name}\.requires_grad = True"):
        moe(**arguments(**given), scores="sigmoid")
    if name == "score_bias":
        with pytest.raises(ProblemError, match=r"^bias\.requires_grad = True"):
            top_experts(given["router_logits"], 2, scores="sigmoid", bias=given["score_bias"])  # type: ignore[arg-type]


def test_no_token_needs_no_kernel() -> None:
    empty = {"x": torch.zeros(0, 256, dtype=torch.bfloat16), "topk_idx": torch.zeros(0, 2, dtype=torch.int32)}
    assert moe(**arguments(**empty, topk_weights=torch.ones(0, 2))).shape == (0, 256)


def test_fake_tensors_give_the_result_s_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of their mode too; of an operator that says what it writes."""
    monkeypatch.setattr(experts, "moe_op", lambda *_: pytest.fail("an operator that changes nothing"))
    with FakeTensorMode():
        given = arguments(preactivations=torch.zeros(12, 512, dtype=torch.bfloat16))
        y = moe(**given)
    for one in (y, moe(**given)):
        assert isinstance(one, FakeTensor) and one.shape == (6, 256) and one.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topk": None}, "topk = None: must be a number with router_logits"),
        ({"topk": 5}, "topk = 5: must be at most num_experts = 4"),
        ({"router_logits": torch.zeros(6)}, r"router_logits.shape = \(6,\): must be \(tokens, experts\)"),
        ({"router_logits": torch.zeros(6, 4, dtype=torch.float16)}, "router_logits.dtype = torch.float16: must be torch.float32 or"),
        ({"scores": "relu"}, "scores = 'relu': must be one of softmax, sigmoid"),
        ({"router": torch.zeros(4, 256)}, "router_logits = 'a tensor': must be None with router"),
        ({"router": torch.zeros(4, 256, device="meta"), "router_logits": None}, "router.device = .*meta.*: must be cpu"),
        ({"router": torch.zeros(4, 256, dtype=torch.float64), "router_logits": None}, "router.dtype = torch.float64: must be torch"),
        ({"router": torch.zeros(4, 256).T.contiguous().T, "router_logits": None}, r"router.stride\(\) = \(1, 4\): must be contiguous"),
        ({"router": torch.zeros(4, 128), "router_logits": None}, r"router.shape = \(4, 128\): must be \(experts, 256\)"),
        ({"token_ids": torch.zeros(6).long()}, r"token_ids, hash_table = \['a tensor', None\]: must be both given, or neither"),
        ({"token_ids": torch.zeros(5).long(), "hash_table": torch.zeros(9, 2).int()}, r"token_ids.shape = \(5,\): must be \(6,\)"),
        ({"token_ids": torch.zeros(6).long(), "hash_table": torch.zeros(9, 2)}, "hash_table.dtype = torch.float32: must be torch.int32"),
        ({"token_ids": torch.zeros(6).long(), "hash_table": torch.zeros(0, 2).int()}, r"hash_table.shape\[0\] = 0: must be 1 or more"),
        ({"replicas": torch.zeros(3, 2).int()}, r"replicas.shape = \(3, 2\): must be \(4, 2\)"),
        ({"replica_shift": -1}, "replica_shift = -1: must be between 0"),
        ({"scores": "sigmoid", "score_bias": torch.zeros(3)}, r"score_bias.shape = \(3,\): must be \(4,\)"),
        ({"score_bias": torch.zeros(4)}, "score_bias = 'a tensor': must be None with scores = softmax"),
        ({"weight_scale": float("nan")}, "weight_scale = nan: must be a finite number"),
        ({"router_logits": torch.zeros(5, 4)}, r"router_logits.shape = \(5, 4\): must be \(6, experts\)"),
    ],
)
def test_logits_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    given = {"router_logits": torch.zeros(6, 4), "topk": 2, "topk_idx": None, "topk_weights": None}
    with pytest.raises(ProblemError, match=message):
        moe(**arguments(**{**given, **changes}))


def test_fake_logits_give_experts_of_their_shapes() -> None:
    with FakeTensorMode():
        idx, weights = top_experts(torch.zeros(6, 64, dtype=torch.bfloat16), 4, scores="sigmoid", groups=2)
    assert (idx.shape, idx.dtype, weights.shape, weights.dtype) == ((6, 4), torch.int64, (6, 4), torch.float32)


def drawn(dtype: torch.dtype, tokens: int = 6) -> dict[str, Any]:
    """Of `arguments`, with numbers to compute with."""
    generator = torch.Generator().manual_seed(tokens)
    w1, w2 = (torch.randn(4, *shape, generator=generator) / 16 for shape in ((512, 256), (256, 256)))
    fp8 = dtype == FP8
    (w1, w1_sf), (w2, w2_sf) = (quantize_weight_e4m3(w) if fp8 else (w.bfloat16(), None) for w in (w1, w2))
    routing = torch.rand(tokens, 4, generator=generator).topk(2)
    x = torch.randn(tokens, 256, generator=generator).bfloat16()
    return arguments(x=x, w1=w1, w1_sf=w1_sf, w2=w2, w2_sf=w2_sf, topk_idx=routing.indices, topk_weights=routing.values)


def in_float64(call: dict[str, Any]) -> torch.Tensor:
    idx, (x, w1, w2, weights) = call["topk_idx"], (call[name].double() for name in ("x", "w1", "w2", "topk_weights"))
    gate, up = torch.einsum("th,tkih->tki", x, w1[idx]).chunk(2, dim=2)
    rows = torch.einsum("tki,tkhi->tkh", torch.nn.functional.silu(gate) * up, w2[idx])
    return (rows * weights[:, :, None]).sum(dim=1)


def test_cpu_tensors_are_computed_by_the_reference() -> None:
    """Its bits are those of the kernels: tests/kernels/test_expert_routing.py."""
    call = drawn(torch.bfloat16)
    y, expected = moe(**call), in_float64(call)
    assert (y - expected).norm() < 0.01 * expected.norm()
    logits = torch.randn(6, 4)
    idx, weights = top_experts(logits, 2, scores="sigmoid")
    routed = moe(**{**call, "topk_idx": None, "topk_weights": None}, router_logits=logits, topk=2, scores="sigmoid")
    assert torch.equal(routed, moe(**{**call, "topk_idx": idx, "topk_weights": weights}))


def test_an_fp32_router_is_cut_without_loss() -> None:
    router = torch.randn(4, 256)
    assert torch.equal(cut(router).float().view(3, 4, 256).flip(0).sum(0), router)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_router_makes_the_logits(dtype: torch.dtype) -> None:
    """In FP32, under autocast and a compiler too; experts named by a table, and replicas of experts, give the same y."""
    call = {**drawn(torch.bfloat16), "topk_idx": None, "topk_weights": None, "topk": 2, "scores": "sqrtsoftplus"}
    router = torch.randn(4, 256).to(dtype)
    logits = call["x"].float() @ router.float().T
    y = moe(**call, router_logits=logits)
    assert torch.equal(moe(**call, router=router), y)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(moe(**call, router=router), y)
    compiled = torch.compile(lambda router: moe(**call, router=router), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(router), y)
    idx, _ = top_experts(logits, 2, scores="sqrtsoftplus")
    assert torch.equal(moe(**call, router=router, token_ids=torch.arange(6), hash_table=idx.int()), y)
    twice = {**call, "w1": call["w1"].repeat(2, 1, 1), "w2": call["w2"].repeat(2, 1, 1)}
    replicas = torch.stack([torch.arange(4), torch.arange(4, 8)], dim=1).int()
    assert torch.equal(moe(**twice, router=router, replicas=replicas, replica_shift=3), y)


@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16])
def test_the_layer_is_one_node_of_a_whole_graph(dtype: torch.dtype) -> None:
    """Of any number of tokens: three numbers take two compilations at most."""
    counter = CompileCounter()
    compiled = torch.compile(lambda **call: moe(**call) + 1, fullgraph=True, backend=counter)
    for tokens in (6, 7, 9):
        call = drawn(dtype, tokens)
        assert torch.equal(compiled(**call), moe(**call) + 1)
    assert counter.frame_count <= 2


def test_the_layer_exports() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            return moe(**{**call, "x": x, "topk_idx": idx, "topk_weights": weights})

    call = drawn(torch.bfloat16)
    tensors = call["x"], call["topk_idx"], call["topk_weights"]
    tokens = torch.export.Dim("tokens", min=2, max=512)
    program = torch.export.export(Layer(), tensors, dynamic_shapes=({0: tokens}, {0: tokens}, {0: tokens}))
    more = drawn(torch.bfloat16, 11)
    found = program.module()(more["x"], more["topk_idx"], more["topk_weights"])
    assert torch.equal(found, moe(**{**call, **{name: more[name] for name in ("x", "topk_idx", "topk_weights")}}))


def test_masked_slots_of_cpu_tensors_count_for_nothing() -> None:
    call = drawn(torch.bfloat16)
    masked = call["topk_idx"].clone()
    masked[0], masked[1, 1] = torch.tensor([-1, 4]), 1 << 32
    y = moe(**{**call, "topk_idx": masked})
    assert not y[0].any() and torch.equal(y[2:], moe(**call)[2:]) and not torch.equal(y[1], moe(**call)[1])
    stored = torch.ones(12, 512).bfloat16()
    assert not moe(**{**call, "topk_idx": torch.full_like(masked, -1)}, preactivations=stored).any() and (stored == 1).all()


def test_modes_of_torch_change_nothing() -> None:
    call = drawn(torch.bfloat16)
    y = moe(**call)
    with torch.inference_mode():
        assert torch.equal(moe(**call), y)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(moe(**call), y)
    functional = torch.func.functionalize(lambda x: moe(**{**call, "x": x}) * 1)
    assert torch.equal(functional(call["x"]), y)


def test_biases_and_weights_of_tokens_are_float32_or_bfloat16() -> None:
    """The same numbers in either; two biases are loaded together."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"w1_bias": (4, 512), "w2_bias": (4, 256), "topk_weights": (6, 2)}
    given = {name: torch.randn(size, generator=generator).bfloat16() for name, size in sizes.items()}
    wide, narrow = (moe(**arguments(**{name: one.to(dtype) for name, one in given.items()})) for dtype in (torch.float32, torch.bfloat16))
    assert wide.any() and torch.equal(wide, narrow)
    shifted = torch.zeros(4 * 512 + 1, dtype=torch.bfloat16)[1:].view(4, 512)
    with pytest.raises(ProblemError, match=r"^w1_bias\.data_ptr\(\) = \d+: must be a multiple of 4$"):
        moe(**arguments(w1_bias=shifted, w2_bias=given["w2_bias"]))
