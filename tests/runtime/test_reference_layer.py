"""A layer of one rank on CPU tensors: the bits of the reference, call by call."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from megamoe_dsl import MegaMoE, Problem, ProblemError, WatchdogError, random_inputs, random_weights
from megamoe_dsl.quant import quantize_e4m3_f32, weight_names
from megamoe_dsl.recipe import RECIPES
from megamoe_dsl.reference import LayerInputs, mega_moe_stages
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer

PROBLEM = Problem(256, 128, 4, 2, max_tokens_per_rank=16, recipe="fp8xfp8", biases=True, activation="swigluoai")


def layer_of(problem: Problem, seed: int = 0) -> MegaMoE:
    return MegaMoE(problem, random_weights(problem, 0, seed), symmetric=SymmetricBuffer.allocate(problem, device="cpu"))


@pytest.mark.parametrize("recipe", ["fp8xfp8", "fp8xmxfp4", "mxf4xmxf4", "nvfp4xnvfp4"])
def test_y_is_the_reference_s(recipe: str) -> None:
    problem = replace(PROBLEM, recipe=recipe)
    given, layer = random_inputs(problem, 0, 7, 1), layer_of(problem)
    inputs = LayerInputs(problem, [given.x], [given.x_sf], [given.topk_idx], [given.topk_weights], [random_weights(problem, 0, 0)])
    accumulate = torch.float64 if problem.formats.scales_in_mma else "hopper"
    expected = mega_moe_stages(inputs, accumulate).y[0]
    found = layer(given.x, given.topk_idx, given.topk_weights, x_sf=given.x_sf)
    assert torch.equal(found, expected) and found.any()
    assert layer.stats.sum() == (given.topk_idx >= 0).sum()
    layer.synchronize()


def test_calls_in_a_row_differ_in_one_thing() -> None:
    """BF16 tokens, what masks a slot, out, other weights, and torch.compile."""
    layer = layer_of(PROBLEM)
    x, idx, weights = torch.randn(5, 256).bfloat16(), torch.rand(5, 4).topk(2).indices, torch.rand(5, 2)
    first = layer(x, idx, weights)
    q, sf = quantize_e4m3_f32(x.float())
    assert torch.equal(layer(q, idx, weights, x_sf=sf), first) and torch.equal(layer(x, idx.int(), weights), first)
    idx[2] = torch.tensor([-1, 9])
    masked = layer(x, idx, weights)
    assert not masked[2].any() and torch.equal(masked[3:], first[3:]) and first[2].any()
    out = torch.ones_like(masked)
    assert layer(x, idx, weights, out=out) is out and torch.equal(out, masked)
    assert torch.equal(torch.compile(layer, fullgraph=True, backend="aot_eager")(x, idx, weights), masked)
    layer.load_weights(random_weights(PROBLEM, 0, 1))
    assert not torch.equal(layer(x, idx, weights), masked)
    assert torch.equal(layer(x, idx, weights), layer_of(PROBLEM, 1)(x, idx, weights))
    layer.symmetric.close()


@pytest.mark.parametrize("recipe", ["fp8xfp8", "bf16xbf16"])
def test_what_is_checked_is_named_as_the_caller_does(recipe: str) -> None:
    """A weight of a masked slot may be anything."""
    layer = layer_of(replace(PROBLEM, recipe=recipe))
    x, idx, weights = torch.randn(5, 256).bfloat16(), torch.rand(5, 4).topk(2).indices, torch.rand(5, 2)
    with pytest.raises(ProblemError, match=r"^x\[4, 255\] = inf: must be finite"):
        layer(x.index_put((torch.tensor(4), torch.tensor(255)), torch.tensor(torch.inf).bfloat16()), idx, weights, check=True)
    weights[1, 1] = torch.nan
    with pytest.raises(ProblemError, match=r"^topk_weights\[1, 1\] = nan: must be finite"):
        layer(x, idx, weights, check=True)
    idx[1, 1] = -1
    assert layer(x, idx, weights, check=True).isfinite().all()
    with pytest.raises(ProblemError, match=r"^topk_idx = None: must be a tensor"):
        layer(x, None, weights)
    with pytest.raises(ProblemError, match="num_tokens_bound = 0: must be between this rank's 5 tokens and max_tokens_per_rank = 16"):
        layer(x, idx, weights, num_tokens_bound=0)
    for given, message in (({"bounds": 8}, "bounds = 8: must be several integers"), ({"reserved_sms": -1}, "reserved_sms = -1: must be")):
        with pytest.raises(ProblemError, match=message):
            MegaMoE(layer.problem, symmetric=layer.symmetric, **given)


@pytest.mark.parametrize("recipe", RECIPES)
def test_weights_that_are_loaded_leave_the_callers_alone(recipe: str) -> None:
    """A layer has its own copy, also of what has one order only."""
    problem = replace(PROBLEM, recipe=recipe)
    given, others = (random_weights(problem, 0, seed) for seed in (0, 1))
    before, layer = given.map(torch.clone), MegaMoE(problem, given, symmetric=SymmetricBuffer.allocate(problem, device="cpu"))
    layer.load_weights(others)
    for name in weight_names(problem):
        assert torch.equal(getattr(given, name).view(torch.uint8), getattr(before, name).view(torch.uint8))
        assert torch.equal(layer.state_dict()[name].view(torch.uint8), getattr(others, name).view(torch.uint8))


def test_to_synchronize_waits_for_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of its kernels' waits becomes the error."""
    layer = layer_of(PROBLEM)

    def trapped() -> None:
        layer.memory.watchdog.fill_(1)
        raise RuntimeError("unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "synchronize", trapped)
    layer.symmetric.sym = SimpleNamespace(is_cuda=True)  # type: ignore[assignment]
    with pytest.raises(WatchdogError, match="rank 1"):
        layer.synchronize()
    with pytest.raises(WatchdogError, match="rank 1"):
        layer.synchronize(limit_s=1.0)  # of one rank, which waits for no other


def test_modes_of_torch_change_nothing() -> None:
    """Of a call, which also exports for any number of tokens, and is refused where it would need a gradient."""
    layer = layer_of(PROBLEM)
    x, idx, weights = torch.randn(5, 256).bfloat16(), torch.rand(5, 4).topk(2).indices, torch.rand(5, 2)
    y = layer(x, idx, weights)
    for mode in (torch.inference_mode(), torch.no_grad(), torch.autocast("cpu", torch.bfloat16)):
        with mode:
            assert torch.equal(layer(x, idx, weights), y)
    tokens = torch.export.Dim("tokens", min=2, max=16)
    program = torch.export.export(layer, (x, idx, weights), dynamic_shapes=({0: tokens}, {0: tokens}, {0: tokens}), strict=False)
    more = torch.randn(9, 256).bfloat16(), torch.rand(9, 4).topk(2).indices, torch.rand(9, 2)
    assert torch.equal(program.module()(*more), layer(*more))
    counter = CompileCounter()
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    assert all(torch.equal(compiled(x[:rows], idx[:rows], weights[:rows]), y[:rows]) for rows in (5, 4, 3)) and counter.frame_count <= 2
    with pytest.raises(ProblemError, match=r"^x\.requires_grad = True"):
        layer(x.clone().requires_grad_(), idx, weights)


@pytest.mark.parametrize("name", ["x", "x_sf", "topk_weights", "out"])
def test_a_tensor_that_asks_for_a_gradient_is_named(name: str) -> None:
    given = random_inputs(PROBLEM, 0, 5, 1)._asdict() | {"out": torch.zeros(5, 256).bfloat16()}
    given[name] = given[name].float().requires_grad_()
    with pytest.raises(ProblemError, match=rf"^{name}\.requires_grad = True: must be False"):
        layer_of(PROBLEM)(**given)


def test_what_it_has_not_is_refused() -> None:
    symmetric = SymmetricBuffer.allocate(replace(PROBLEM, num_experts=5, topk=3), device="cpu")
    with pytest.raises(ProblemError, match="shared_experts = 1: must be 0 on the CPU"):
        MegaMoE(PROBLEM, symmetric=symmetric, shared_experts=1)
    with pytest.raises(ProblemError, match=r"x\.dtype = torch.float32: must be torch.bfloat16"):
        layer_of(PROBLEM)(torch.zeros(1, 256), torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2))


def test_few_tokens_take_no_kernel_of_a_gpu() -> None:
    layer = layer_of(Problem(256, 128, 4, 2, max_tokens_per_rank=16, recipe="fp8xmxfp4"))
    assert layer.few is None and layer(torch.randn(3, 256).bfloat16(), torch.rand(3, 4).topk(2).indices, torch.rand(3, 2)).any()


def test_a_layer_loads_beside_other_modules() -> None:
    """What is unexpected is said only where torch asks, and only of the layer's own."""
    model = torch.nn.ModuleDict({"ffn": layer_of(PROBLEM, 1), "ffn2": layer_of(PROBLEM, 2), "norm": torch.nn.LayerNorm(4)})
    given = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    target = torch.nn.ModuleDict({"ffn": layer_of(PROBLEM), "ffn2": layer_of(PROBLEM), "norm": torch.nn.LayerNorm(4)})
    assert target.load_state_dict(given).unexpected_keys == []
    assert all(torch.equal(tensor.float(), given[name].float()) for name, tensor in target.state_dict().items())
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: \"ffn\.extra\"\."):
        target.load_state_dict({**given, "ffn.extra": torch.zeros(1)})
    result = target["ffn"].load_state_dict({**layer_of(PROBLEM, 3).state_dict(), "extra": torch.zeros(1)}, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == ([], ["extra"])
    assert torch.equal(target["ffn"].state_dict()["fc1"].float(), random_weights(PROBLEM, 0, 3).fc1.float())
    assert torch.equal(target["ffn2"].state_dict()["fc1"].float(), given["ffn2.fc1"].float())


def test_a_layer_that_fails_leaves_its_buffer_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first layer on a buffer says its grid."""
    buffer, weights = SymmetricBuffer.allocate(PROBLEM, device="cpu"), random_weights(PROBLEM, 0, 0)
    with monkeypatch.context() as patch:
        patch.setattr("megamoe_dsl.runtime.layer.ReferenceInputs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            MegaMoE(PROBLEM, weights, symmetric=buffer, reserved_sms=2)
    assert buffer.num_sms == 0
    MegaMoE(PROBLEM, weights, symmetric=buffer)
    with pytest.raises(ProblemError, match=r"num_sms = \d+: must be \d+, as in every other kernel"):
        MegaMoE(PROBLEM, weights, symmetric=buffer, reserved_sms=2)


def test_a_limit_counts_for_layers_that_wait_for_others() -> None:
    layer_of(PROBLEM).synchronize(limit_s=0.001)


def test_what_a_gradient_would_go_through_is_refused() -> None:
    """A leaf or not."""
    layer = layer_of(PROBLEM)
    leaf, idx, weights = torch.randn(5, 256).bfloat16().requires_grad_(), torch.rand(5, 4).topk(2).indices, torch.rand(5, 2)
    for x in (leaf, leaf * 2):
        with pytest.raises(ProblemError, match=r"x\.requires_grad = True: must be False"):
            layer(x, idx, weights)
