"""`moe` with gradients: as an operator of torch, on CPU tensors; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from megamoe_dsl import ProblemError, moe
from megamoe_dsl.runtime import expert_gradients, experts
from megamoe_dsl.runtime.cpu_experts import gate_then_up
from megamoe_dsl.runtime.device_gradients import weight_gradients
from megamoe_dsl.runtime.top_experts import router_logits_of, top_experts

NAMES = ("x", "w1", "w2", "topk_weights")


def layer(*trained: str, seed: int = 0, tokens: int = 7, experts: int = 4) -> dict[str, Any]:
    """Arguments of `moe`, those named with gradients: the last expert is without rows, top 2; from three tokens on with a masked slot."""
    generator = torch.Generator().manual_seed(seed)
    made = {
        "x": torch.randn(tokens, 256, generator=generator).bfloat16(),
        "w1": (torch.randn(experts, 256, 256, generator=generator) / 16).bfloat16(),
        "w1_sf": None,
        "w2": (torch.randn(experts, 256, 128, generator=generator) / 12).bfloat16(),
        "w2_sf": None,
        "topk_weights": torch.rand(tokens, 2, generator=generator),
    }
    idx = torch.rand(tokens, experts - 1, generator=generator).topk(2).indices
    idx[2:3, 1] = -1
    return {**{name: one.requires_grad_() if name in trained else one for name, one in made.items()}, "topk_idx": idx}  # type: ignore[union-attr]


def dy_of(x: torch.Tensor) -> torch.Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(9)).bfloat16()


DY = dy_of(torch.empty(7, 256))


def gradients(call: Callable[..., torch.Tensor], given: dict[str, Any], **more: Any) -> dict[str, torch.Tensor]:
    call(**given, **more).backward(DY)
    return {name: given[name].grad for name in NAMES if given[name].requires_grad}


def activated(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """As papers and checkpoints have them; their limits are beyond these values but for situ's."""
    if activation == "swigluoai":
        return (up.clamp(-7, 7) + 1) * gate.clamp(max=7) * (1.702 * gate.clamp(max=7)).sigmoid()
    if activation == "situ":
        return 4 * (gate / 4).tanh() * gate.sigmoid() * 25 * (up / 25).tanh()
    return torch.nn.functional.silu(gate) * up


def in_float64(given: dict[str, Any], gate_up: str = "gate_first", activation: str = "silu") -> dict[str, torch.Tensor]:
    leaves = {name: given[name].detach().double().requires_grad_() for name in NAMES}
    idx = given["topk_idx"]
    sums = torch.einsum("th,tkih->tki", leaves["x"], leaves["w1"][idx.clamp(min=0)])
    gate, up = gate_then_up(sums.flatten(0, 1), gate_up).view(sums.shape).chunk(2, dim=2)
    rows = torch.einsum("tki,tkhi->tkh", activated(gate, up, activation), leaves["w2"][idx.clamp(min=0)])
    (rows * leaves["topk_weights"].where(idx >= 0, 0.0)[:, :, None]).sum(dim=1).backward(dy_of(given["x"]).double())
    return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def assert_near(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], bound: float = 0.006) -> None:
    for name, one in found.items():
        assert one is not None and (one.double() - expected[name]).norm() < bound * expected[name].norm(), name


@pytest.mark.parametrize("gate_up", ["gate_first", "up_first", "interleaved"])
def test_gradients_are_those_of_the_plain_layer(gate_up: str) -> None:
    given = layer(*NAMES)
    found = gradients(moe, given, gate_up=gate_up)
    assert_near(found, in_float64(given, gate_up))
    assert not found["w1"][3].any() and not found["w2"][3].any() and found["topk_weights"][2, 1] == 0
    again = gradients(moe, layer(*NAMES), gate_up=gate_up)
    assert all(torch.equal(again[name], found[name]) for name in NAMES)


@pytest.mark.parametrize("activation", ["swigluoai", "situ"])
def test_gradients_are_those_of_the_activation(activation: str) -> None:
    given = layer(*NAMES)
    assert_near(gradients(moe, given, activation=activation), in_float64(given, activation=activation), 0.01)


def test_the_result_is_that_of_no_gradient() -> None:
    with torch.no_grad():
        expected = moe(**layer(*NAMES))
    assert torch.equal(moe(**layer(*NAMES)), expected)


@pytest.mark.parametrize("trained", [*NAMES, "none of them"])
def test_a_stage_runs_only_where_its_result_is_asked_for(trained: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen experts take no gradient of weights: of x alone dH and dX are made."""
    made: list[str] = []
    for stage in ("token_gradients", "weight_gradients"):
        original = getattr(expert_gradients, stage)
        monkeypatch.setattr(
            expert_gradients, stage, lambda *given, stage=stage, original=original: (made.append(stage), original(*given))[1]
        )
    given = layer(trained)
    y = moe(**given)
    assert y.requires_grad == (trained in NAMES)
    if y.requires_grad:
        y.backward(DY)
    assert made == {"x": ["token_gradients"], "w1": ["weight_gradients"], "w2": ["weight_gradients"]}.get(trained, [])
    if y.requires_grad:
        assert torch.equal(given[trained].grad, gradients(moe, layer(*NAMES))[trained])


@pytest.mark.parametrize("recompute", [False, True])
def test_what_is_kept_are_arguments_and_gate_and_up(recompute: bool) -> None:
    """Which a backward pass may compute again, to the same bits."""
    given, kept = layer(*NAMES), list[torch.Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda one: (kept.append(one), one)[1], lambda one: one):
        y = moe(**given, recompute=recompute)
    arguments = {one.data_ptr() for one in given.values() if isinstance(one, torch.Tensor)}
    assert sum(one.nbytes for one in kept if one.data_ptr() not in arguments) == (0 if recompute else 14 * 256 * 2)
    y.backward(DY)
    assert all(torch.equal(given[name].grad, one) for name, one in gradients(moe, layer(*NAMES)).items())


def test_weights_gradients_go_to_main_grads() -> None:
    """In FP32, added to what is there: of two calls before two backward passes, and none to the weights themselves."""
    expected, given = in_float64(layer()), layer(*NAMES)
    totals = torch.ones(4, 256, 256), torch.ones(4, 256, 128)
    results = [moe(**given, main_grads=totals) for _ in range(2)]
    for y in results:
        y.backward(DY)
    assert given["w1"].grad is None and given["w2"].grad is None and given["x"].grad is not None
    found = {name: (total - 1) / 2 for name, total in zip(("w1", "w2"), totals, strict=True)}
    assert_near(found, expected)
    rounded = gradients(moe, layer(*NAMES))
    assert all(torch.allclose(found[name].bfloat16(), rounded[name], rtol=2**-7, atol=1e-5) for name in ("w1", "w2"))


@pytest.mark.parametrize(("dynamic", "recompute"), [(False, False), (True, True)])
def test_a_compiled_layer_has_the_same_gradients(dynamic: bool, recompute: bool) -> None:
    compiled = torch.compile(lambda **given: moe(**given, recompute=recompute) * 1, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    expected, found = gradients(moe, layer(*NAMES)), gradients(compiled, layer(*NAMES))
    assert all(torch.equal(found[name], expected[name]) for name in NAMES)


@pytest.mark.parametrize("recompute", [False, True])
def test_compilers_know_what_a_pass_keeps(recompute: bool) -> None:
    given = layer()
    tensors = [given[name] for name in ("x", "topk_idx", "topk_weights", "w1", "w2")]
    arguments = *tensors, *[None] * (2 + expert_gradients.MADE), recompute, "gate_first", "silu", "bf16xbf16"
    torch.library.opcheck(torch.ops.megamoe_dsl.moe_training.default, arguments, test_utils=("test_faketensor", "test_schema"))


def test_main_grads_of_a_compiled_layer() -> None:
    compiled = torch.compile(lambda totals, **given: moe(**given, main_grads=totals) * 1, fullgraph=True, backend="aot_eager")
    found, expected = ((torch.zeros(4, 256, 256), torch.zeros(4, 256, 128)) for _ in range(2))
    compiled(found, **layer(*NAMES)).backward(DY)
    moe(**layer(*NAMES), main_grads=expected).backward(DY)
    assert all(torch.equal(one, other) and one.any() for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_layer_has_the_same_gradients(reentrant: bool) -> None:
    given = layer(*NAMES)
    found = gradients(lambda **given: checkpoint(lambda x: moe(**{**given, "x": x}), given["x"], use_reentrant=reentrant), given)
    expected = gradients(moe, layer(*NAMES))
    assert all(torch.equal(found[name], expected[name]) for name in NAMES)


@pytest.mark.parametrize(("scores", "scale"), [("softmax", 1.0), ("sigmoid", 2.5), ("sqrtsoftplus", 1.0)])
def test_logits_have_gradients(scores: str, scale: float) -> None:
    """Those of the weights, through the shares of the chosen experts."""
    given, logits = layer(*NAMES), torch.randn(7, 4, requires_grad=True)
    routed = {**given, "topk_idx": None, "topk_weights": None, "router_logits": logits, "topk": 2, "scores": scores, "weight_scale": scale}
    moe(**routed).backward(DY)
    idx, weights = top_experts(logits.detach(), 2, scores=scores, scale=scale)
    found = gradients(moe, {**layer(*NAMES), "topk_idx": idx, "topk_weights": weights.requires_grad_()})
    chosen = logits.detach().gather(1, idx).requires_grad_()
    own = {"softmax": torch.exp, "sigmoid": torch.sigmoid, "sqrtsoftplus": lambda one: torch.nn.functional.softplus(one).sqrt()}[scores](
        chosen
    )
    (scale * own / own.sum(1, keepdim=True)).backward(found["topk_weights"])
    assert logits.grad is not None and chosen.grad is not None and torch.equal(given["w1"].grad, found["w1"])
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits).scatter(1, idx, chosen.grad))


def test_logits_in_bfloat16_have_gradients() -> None:
    """Rounded once."""
    logits, dw = torch.randn(7, 4).bfloat16(), torch.randn(7, 2)
    wide, narrow = (logits.to(dtype).requires_grad_() for dtype in (torch.float32, torch.bfloat16))
    for leaf in (wide, narrow):
        (top_experts(leaf, 2)[1] * dw).sum().backward()
    assert wide.grad is not None and narrow.grad is not None and torch.equal(narrow.grad, wide.grad.bfloat16()) and narrow.grad.any()


def test_a_router_has_gradients() -> None:
    """Those of its logits, times tokens; and the table of ids masks slots, whose logits have none."""
    given, router = layer(*NAMES), torch.randn(4, 256, requires_grad=True)
    routed = {**given, "topk_idx": None, "topk_weights": None, "topk": 2}
    moe(**routed, router=router).backward(DY)
    logits = (given["x"].detach().float() @ router.detach().T).requires_grad_()
    moe(**{**routed, **layer(*NAMES), "topk_idx": None, "topk_weights": None}, router_logits=logits).backward(DY)
    assert router.grad is not None and logits.grad is not None
    torch.testing.assert_close(router.grad, logits.grad.T @ given["x"].detach().float())
    ids, table = torch.tensor([0, 1, 2, 0, 1, 2, 9]), torch.tensor([[0, -1, 3], [2, -1, -1], [-1, -1, -1]], dtype=torch.int32)
    hashed = torch.randn(7, 4, requires_grad=True)
    _, weights = top_experts(hashed, 3, scores="sqrtsoftplus", token_ids=ids, hash_table=table)
    (weights * torch.tensor([3.0, 2.0, 1.0])).sum().backward()
    assert hashed.grad is not None and hashed.grad.isfinite().all()
    wanted = torch.zeros(7, 4, dtype=torch.bool)
    wanted[[0, 3]] = torch.tensor([True, False, False, True])
    assert torch.equal(hashed.grad != 0, wanted)


class OnGpu(torch.Tensor):
    """A CPU tensor that says it is on a GPU."""

    is_cuda = True  # type: ignore[assignment]


@pytest.mark.parametrize("trained", ["", "x", "router"])
def test_a_router_that_is_trained_is_followed_on_a_gpu_too(trained: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product that autograd does not follow is for tensors that ask for nothing."""
    x, router = (torch.randn(4, 64).bfloat16().as_subclass(OnGpu).requires_grad_(trained == name) for name in ("x", "router"))
    multiplied: list[torch.Tensor] = []
    monkeypatch.setattr(torch, "mm", lambda a, b, out_dtype: multiplied.append(a) or a.float() @ b.float())
    assert router_logits_of(x, router).requires_grad == bool(trained) and bool(multiplied) == (not trained)


@pytest.mark.parametrize(("dtype", "tokens", "products"), [(torch.bfloat16, 4, 1), (torch.float32, 1023, 0), (torch.float32, 1024, 1)])
def test_logits_on_a_gpu_are_those_of_fp32(dtype: torch.dtype, tokens: int, products: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor cores multiply BF16: a router of FP32 is cut into three parts, where tokens are many."""
    x, router = torch.randn(tokens, 64).bfloat16(), torch.randn(5, 64).to(dtype)
    multiplied: list[torch.dtype] = []
    monkeypatch.setattr(torch, "mm", lambda a, b, out_dtype: multiplied.append(b.dtype) or (a.double() @ b.double()).to(out_dtype))
    found = router_logits_of(x.as_subclass(OnGpu), router.as_subclass(OnGpu))
    assert multiplied == [torch.bfloat16] * products and found.dtype == torch.float32 and found.shape == (tokens, 5)
    assert torch.allclose(found.double(), x.double() @ router.double().T, rtol=1e-6, atol=1e-5)


def test_no_logits_choose_nothing() -> None:
    idx, weights = top_experts(torch.zeros(0, 8), 2, scores="sigmoid")
    assert (idx.shape, idx.dtype, weights.shape, weights.dtype) == ((0, 2), torch.int64, (0, 2), torch.float32)


def test_no_token_has_gradients_of_zero() -> None:
    given = layer("w1", "w2")
    empty = {"x": torch.zeros(0, 256).bfloat16().requires_grad_(), "topk_idx": torch.zeros(0, 2).long(), "topk_weights": torch.zeros(0, 2)}
    moe(**{**given, **empty}).sum().backward()
    assert all(not given[name].grad.any() for name in ("w1", "w2")) and empty["x"].grad.shape == (0, 256)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"preactivations": torch.zeros(14, 256).bfloat16()},
            "preactivations = 'a tensor': must be None where bfloat16 weights have gradients",
        ),
        ({"w1_sf": torch.ones(1)}, "w1_sf = 'a tensor': must be None"),
        ({"main_grads": (torch.zeros(4, 256, 256), torch.zeros(4, 128, 256))}, r"main_grads\[1\].shape = \(4, 128, 256\): must be"),
        (
            {"main_grads": (torch.zeros(4, 256, 256), torch.zeros(4, 256, 128), torch.zeros(1))},
            "main_grads = .*: must be None, or two tensors",
        ),
        ({"recompute": 1}, "recompute = 1: must be True or False"),
        ({"main_grads": (torch.zeros(4, 256, 256).bfloat16(), torch.zeros(4, 256, 128))}, r"main_grads\[0\].dtype = torch.bfloat16"),
        ({"topk_weights": torch.ones(7, 2).double()}, "topk_weights.dtype = torch.float64"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        moe(**{**layer("x"), **changes})


def test_gradients_of_gradients_and_transforms_are_refused() -> None:
    given = layer("x")
    with pytest.raises(ProblemError, match="create_graph = True: must be False: moe has no gradient of its gradients"):
        torch.autograd.grad(moe(**given).sum(), given["x"], create_graph=True)
    transforms = (
        torch.func.grad,
        torch.func.hessian,
        lambda f: lambda x: torch.func.jvp(f, (x,), (x,)),
        lambda f: partial(torch.func.linearize, f),
    )
    for transform in transforms:
        with pytest.raises(ProblemError, match=r"torch\.func = 'a transform': must be left out"):
            transform(lambda x: moe(**{**given, "x": x}).float().sum())(given["x"].detach())


def test_a_tangent_is_refused() -> None:
    """Of a tensor that autograd does not follow, too."""
    given = layer()
    with forward_ad.dual_level():
        expected = moe(**given)
        for name in (*NAMES, "w1_bias"):
            one = given.get(name, torch.zeros(4, 256))
            with pytest.raises(ProblemError, match=r"torch\.func = 'a transform': must be left out"):
                moe(**{**given, name: forward_ad.make_dual(one, one)})
        assert torch.equal(moe(**given), expected)


def test_weights_of_tokens_in_bfloat16_have_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of the backward pass are given float32."""
    given, train, dtypes = layer("topk_weights"), experts.moe_training_op, list[torch.dtype]()
    monkeypatch.setattr(experts, "moe_training_op", lambda *tensors: dtypes.append(tensors[2].dtype) or train(*tensors))
    narrow = given["topk_weights"].detach().bfloat16().requires_grad_()
    moe(**{**given, "topk_weights": narrow}).backward(DY)
    assert dtypes == [torch.float32] and narrow.grad is not None and narrow.grad.dtype == torch.bfloat16 and narrow.grad.any()


def test_an_index_of_no_expert_masks_its_slot_in_both_passes() -> None:
    masked, given = layer(*NAMES), layer(*NAMES)
    given["topk_idx"][given["topk_idx"] < 0] = 4
    wanted, found = gradients(moe, masked), gradients(moe, given)
    assert (given["topk_idx"] == 4).any() and all(torch.equal(found[name], wanted[name]) for name in NAMES)


def test_no_rows_make_a_gradient_of_zeros() -> None:
    """As of a rank that no token came to."""
    weight, total = torch.ones(2, 3), torch.ones(2, 3)
    gradient = expert_gradients.of_weight(weight, None, 0, pytest.fail)  # type: ignore[arg-type]
    assert gradient is not None and gradient.shape == (2, 3) and not gradient.any()
    assert expert_gradients.of_weight(weight, total, 0, pytest.fail) is None and total.all()  # type: ignore[arg-type]


def test_gradients_are_added_where_tma_writes() -> None:
    total = torch.zeros(2 * 256 * 128 + 1)[1:].view(2, 256, 128)
    none: Any = None
    with pytest.raises(ProblemError, match=r"main_grads\.data_ptr\(\) = \d+: must be a multiple of 16"):
        weight_gradients(total, none, none, none, none, tokens_first=False)
