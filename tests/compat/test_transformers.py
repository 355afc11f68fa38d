"""Real models of transformers, tiny and on the CPU, with this project's experts: their logits beside eager's."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tiny_models import MODELS, tiny
from transformers.integrations.finegrained_fp8 import FP8Experts

import megamoe_dsl.compat.transformers as adapter
from megamoe_dsl import MoE, Problem, ProblemError, load_experts
from megamoe_dsl.compat.transformers import lay_out, lies_by_rows, recognized
from megamoe_dsl.quant import quantize_e2m1, quantize_weight_e4m3


def logits(model: Any, implementation: str) -> torch.Tensor:
    model.set_experts_implementation(implementation)
    tokens = torch.arange(14).view(2, 7)
    return model(tokens, use_cache=False).logits.float()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Tokens of each call of `moe` by the adapter."""
    found: list[torch.Tensor] = []
    moe = adapter.moe

    def counted(x: torch.Tensor, *others: Any, **more: Any) -> torch.Tensor:
        found.append(x)
        return moe(x, *others, **more)

    monkeypatch.setattr(adapter, "moe", counted)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_models_give_the_logits_of_eager(name: str, calls: list[torch.Tensor]) -> None:
    model = tiny(name)
    expected, found, other = logits(model, "eager"), logits(model, "megamoe"), logits(model, "grouped_mm")
    assert len(calls) == sum(hasattr(layer.mlp, "experts") for layer in model.model.layers)
    assert expected.std() > 0.1 and not torch.equal(found, expected)
    assert (found - expected).norm() < max(1.5 * (other - expected).norm(), 0.02 * expected.norm())


def test_greedy_generation_is_eager_s() -> None:
    model, prompt = tiny("Qwen3Moe"), torch.arange(5)[None]
    found = {}
    for implementation in ("eager", "megamoe"):
        model.set_experts_implementation(implementation)
        found[implementation] = model.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert found["megamoe"].shape == (1, 9) and torch.equal(found["megamoe"], found["eager"])


def test_a_model_compiles_whole(calls: list[torch.Tensor]) -> None:
    model = tiny("Qwen3Moe", num_hidden_layers=1)
    expected = logits(model, "megamoe")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    tokens = torch.arange(14).view(2, 7)
    assert torch.equal(compiled(tokens, use_cache=False).logits.float(), expected)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("Qwen3Moe", {"moe_intermediate_size": 72}, "intermediate = 72: must be a multiple of 32"),
        ("Qwen3Moe", {"hidden_act": "gelu"}, "its gate computes no activation that moe has"),
    ],
)
def test_other_layers_fall_back_and_say_so(
    name: str, changes: dict[str, Any], reason: str, calls: list[torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    adapter.warn_once.cache_clear()
    model = tiny(name, **changes)
    with caplog.at_level(logging.WARNING, "megamoe_dsl"):
        found = logits(model, "megamoe")
    assert not calls and torch.equal(found, logits(model, "grouped_mm"))
    assert [one.getMessage().split(": ")[0] for one in caplog.records] == [f"{name}Experts runs as 'grouped_mm', not 'megamoe'"]
    assert reason in caplog.text


def test_transposed_weights_are_laid_out_once(tmp_path: Path, calls: list[torch.Tensor]) -> None:
    """By the first call or `prepare`, before a compiler looks on; shapes, values and what is saved stay."""
    model, same = tiny("GptOss", num_hidden_layers=1), tiny("GptOss", num_hidden_layers=1)
    experts, tokens = model.model.layers[0].mlp.experts, torch.arange(14).view(2, 7)
    assert "call prepare(model) before it is compiled" in adapter.bf16_refusal(experts, torch.zeros(1, 160).bfloat16())
    lay_out(experts.gate_up_proj)
    assert not lies_by_rows(experts)  # one of the two is no more than half of it
    assert adapter.prepare(model) == 1 and experts.gate_up_proj.stride() == (2 * 96 * 160, 1, 160)
    place = experts.down_proj.data_ptr()
    expected = logits(model, "megamoe")
    assert experts.down_proj.data_ptr() == place and len(calls) == 1
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(tokens, use_cache=False).logits.float(), expected)
    assert torch.equal(logits(model, "eager"), logits(same, "eager"))
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="bfloat16", experts_implementation="megamoe")
    with torch.inference_mode():
        again(tokens, use_cache=False)
    loaded = again.model.layers[0].mlp.experts
    assert len(calls) == 3 and lies_by_rows(loaded)
    assert all(torch.equal(one, getattr(loaded, name)) for name, one in experts.named_parameters())


def test_gates_are_recognized_by_what_they_compute() -> None:
    for changes, gate in (({}, ("swigluoai", None)), ({"limit": 5.0}, ("swigluoai", 5.0)), ({"alpha": 1.5}, None)):
        experts = tiny("GptOss", num_hidden_layers=1).model.layers[0].mlp.experts
        vars(experts).update(changes)
        assert recognized(experts) == gate
    experts = fp8_experts()[0]
    assert recognized(experts) == ("silu", None)
    experts.limit = 10.0
    assert recognized(experts) == ("silu", 10.0)
    experts.swiglu_alpha, experts.swiglu_limit = 1.702, 7.0
    assert recognized(experts) == ("swigluoai", None)
    if hasattr(experts, "gate_softcap"):  # 5.17 has none
        experts.gate_softcap, experts.up_softcap = 4.0, 25.0
        assert recognized(experts) == ("situ", None)


def test_mxfp4_checkpoints(tmp_path: Path, calls: list[torch.Tensor]) -> None:
    """transformers decodes them to BF16, experts then are those of any gpt-oss; and a `MoE` in the place of experts has MXFP4 weights."""
    model = tiny("GptOss", num_hidden_layers=1)
    state, stem = dict(model.state_dict()), "model.layers.0.mlp.experts"
    for name in ("gate_up_proj", "down_proj"):
        codes, scales = quantize_e2m1(state.pop(f"{stem}.{name}").transpose(1, 2).float().contiguous())
        state |= {f"{stem}.{name}_blocks": codes.unflatten(-1, (-1, 16)), f"{stem}.{name}_scales": scales}
    decoded = transformers.Mxfp4Config(dequantize=True)
    model.config.quantization_config = decoded.to_dict()
    model.config.save_pretrained(tmp_path)
    save_file({name: value.contiguous() for name, value in state.items()}, str(tmp_path / "model.safetensors"), {"format": "pt"})
    load = transformers.AutoModelForCausalLM.from_pretrained
    loaded = load(tmp_path, dtype="bfloat16", quantization_config=decoded).requires_grad_(False)
    expected, found, other = (logits(loaded, name) for name in ("eager", "megamoe", "grouped_mm"))
    assert len(calls) == 1 and loaded.model.layers[0].mlp.experts.gate_up_proj.dtype == torch.bfloat16
    assert (found - expected).norm() < max(1.5 * (other - expected).norm(), 0.02 * expected.norm())
    assert (expected - logits(model, "eager")).norm() > 0
    problem = Problem(160, 96, 4, 2, max_tokens_per_rank=14, recipe="fp8xmxfp4", activation="swigluoai", biases=True)
    packed = MoE(problem, device="cpu")
    load_experts(packed, tmp_path, 0)
    loaded.model.layers[0].mlp.experts = packed
    assert 0 < (logits(loaded, "megamoe") - expected).norm() < 0.05 * expected.norm() and len(calls) == 1


def test_training_gpt_oss_falls_back() -> None:
    experts = tiny("GptOss", num_hidden_layers=1).model.layers[0].mlp.experts
    adapter.prepare_layer(experts)
    assert not adapter.bf16_refusal(experts, torch.zeros(1, 160).bfloat16())
    experts.gate_up_proj_bias.requires_grad_()
    assert "biases have none" in adapter.bf16_refusal(experts, torch.zeros(1, 160).bfloat16())
    experts.down_proj_bias = torch.nn.Parameter(experts.down_proj_bias.float())
    assert "biases are torch.bfloat16 and torch.float32" in adapter.bf16_refusal(experts, torch.zeros(1, 160).bfloat16())


def losses(implementation: str, steps: int, **trained: bool) -> tuple[Any, list[float]]:
    """A model after some steps of SGD on a few sequences, and its loss before each."""
    model = tiny("Qwen3Moe", num_hidden_layers=1).float().requires_grad_(True).to(torch.bfloat16)
    model.set_experts_implementation(implementation)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    tokens, found = torch.arange(28).view(2, 14) * 5 % 64, []
    for _ in range(steps):
        loss = model(tokens, labels=tokens, use_cache=False, **trained).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return model, found


def test_a_model_trains_as_it_does_with_other_experts(calls: list[torch.Tensor]) -> None:
    """Loss falls, and stays within what BF16 makes of it beside the experts of transformers."""
    steps = 4
    ours, grouped, eager = (losses(name, steps)[1] for name in ("megamoe", "grouped_mm", "eager"))
    assert len(calls) == steps and ours[-1] < ours[0] - 0.2
    for one, other, plain in zip(ours, grouped, eager, strict=True):
        assert abs(one - plain) < max(0.01, 2 * abs(other - plain)) and one > 0


def test_frozen_experts_give_gradients_of_hidden_states(calls: list[torch.Tensor]) -> None:
    """As beneath LoRA: the router and all below it learn, and the experts have no gradient."""
    found = {}
    for implementation in ("megamoe", "grouped_mm"):
        model = tiny("Qwen3Moe", num_hidden_layers=1).requires_grad_(True)
        layer = model.model.layers[0]
        layer.mlp.experts.requires_grad_(False)
        logits(model, implementation).square().sum().backward()
        assert layer.mlp.experts.gate_up_proj.grad is None
        found[implementation] = [layer.mlp.gate.weight.grad.float(), layer.self_attn.o_proj.weight.grad.float()]
    for ours, other in zip(found["megamoe"], found["grouped_mm"], strict=True):
        assert len(calls) == 1 and (ours - other).norm() < 0.05 * other.norm()


def test_training_fp8_experts_falls_back() -> None:
    experts = fp8_experts()[0]
    assert "gradients are asked for" in adapter.fp8_refusal(experts, torch.zeros(1, 128, dtype=torch.bfloat16, requires_grad=True))
    assert not adapter.fp8_refusal(experts, torch.zeros(1, 128, dtype=torch.bfloat16))
    assert "torch.float16, not torch.bfloat16" in adapter.fp8_refusal(experts, torch.zeros(1, 128, dtype=torch.float16))
    experts.activation_scheme = "static"
    assert adapter.fp8_refusal(experts, torch.zeros(1, 128, dtype=torch.bfloat16)) == "its scales are of (128, 128), static"


def test_training_a_clamped_activation_falls_back() -> None:
    experts, x = tiny("Qwen3Moe", num_hidden_layers=1).model.layers[0].mlp.experts, torch.zeros(1, 128).bfloat16().requires_grad_()
    setattr(experts, adapter.KNOWN, ("silu", 7.0))
    assert adapter.common_refusal(experts, x, "bf16xbf16") == "gradients are asked for, which its clamped activation has not"
    with torch.no_grad():
        assert not adapter.common_refusal(experts, x, "bf16xbf16")


def fp8_experts() -> tuple[FP8Experts, torch.nn.Module]:
    """Experts in E4M3, and in BF16 with the same values."""
    plain = tiny("Qwen3Moe", num_hidden_layers=1).model.layers[0].mlp.experts
    experts = FP8Experts(plain.config, block_size=(128, 128)).requires_grad_(False)
    for name in ("gate_up_proj", "down_proj"):
        values, scales = quantize_weight_e4m3(getattr(plain, name).float())
        getattr(experts, name).copy_(values)
        getattr(experts, f"{name}_scale_inv").copy_(scales)
        of_blocks = scales.repeat_interleave(128, dim=1).repeat_interleave(128, dim=2)
        getattr(plain, name).copy_((values.float() * of_blocks).bfloat16())
    return experts, plain


@pytest.mark.parametrize("limit", [None, 1.0])
def test_fp8_experts_are_those_of_their_values(limit: float | None, calls: list[torch.Tensor]) -> None:
    experts, plain = fp8_experts()
    experts.limit, plain._apply_gate = limit, experts._apply_gate
    x, idx = torch.randn(9, 128).bfloat16(), torch.rand(9, 4).topk(2).indices
    weights = torch.rand(9, 2).bfloat16()
    found = adapter.fp8_experts_forward(experts, x, idx, weights).float()
    assert len(calls) == 1
    expected = adapter.ALL_EXPERTS_FUNCTIONS["grouped_mm"](plain, x, idx, weights).float()
    assert 0 < (found - expected).norm() < 0.06 * expected.norm()  # tokens and products are quantized


def test_a_gate_of_a_models_own_is_not_taken_for_silu() -> None:
    """Of a layer that is not prepared; what it computes is known from calls alone."""
    experts = tiny("Qwen3Moe", num_hidden_layers=1).model.layers[0].mlp.experts
    for name, kind, gate in (("plain", type(experts), ("silu", None)), ("other", own_gate(type(experts)), None)):
        experts.__class__ = kind
        assert adapter.gate_of(experts) == gate, name
    experts.__class__ = kind.__bases__[0]
    for changes in ({"limit": 7.0}, {"swiglu_alpha": 1.7}, {"gate_softcap": 4.0}, {"has_gate": False}, {"act_fn": torch.nn.GELU()}):
        (name, value), *_ = changes.items()
        before = getattr(experts, name, None)
        setattr(experts, name, value)
        assert adapter.gate_of(experts) is None, name
        setattr(experts, name, before)
        assert adapter.gate_of(experts) == ("silu", None)
    for known in (None, ("swigluoai", 7.0)):
        setattr(experts, adapter.KNOWN, known)
        assert adapter.gate_of(experts) == known


@pytest.mark.parametrize(
    ("dtype", "taken"),
    [(torch.bfloat16,) * 2, (torch.float32,) * 2, (torch.float16, torch.float32), (torch.float64, torch.float32)],
)
def test_topk_weights_of_other_types_are_converted(dtype: torch.dtype, taken: torch.dtype) -> None:
    given = torch.tensor([[0.25, 0.75]], dtype=dtype)
    found = adapter.as_taken(given)
    assert found.dtype == taken and found.tolist() == [[0.25, 0.75]] and (found is given) == (dtype == taken)


def own_gate(kind: type[Any]) -> type[Any]:
    return type("Own", (kind,), {"_apply_gate": lambda experts, gate_up: gate_up.chunk(2, dim=-1)[0]})


@pytest.mark.parametrize("name", ["Qwen3Moe", "GptOss", "FP8"])
def test_a_layer_of_experts_is_theirs(name: str) -> None:
    """With weights in each order that models have, biases and scales; the model's own stay as they are."""
    experts = fp8_experts()[0] if name == "FP8" else tiny(name, num_hidden_layers=1).model.layers[0].mlp.experts
    hidden, before = experts.down_proj.shape[2 if name == "GptOss" else 1], {key: one.clone() for key, one in experts.named_parameters()}
    given = torch.randn(9, hidden).bfloat16(), torch.rand(9, 4).topk(2).indices, torch.rand(9, 2)
    forward = adapter.fp8_experts_forward if name == "FP8" else adapter.experts_forward
    with torch.device("meta"):  # where a program's default device is does not matter
        layer = adapter.layer_of(experts, 2, 9, launch="moe")
        assert torch.equal(layer(*given), forward(experts, *given)) and layer.problem.max_tokens_per_rank == 9
    assert all(torch.equal(one, before[key]) for key, one in experts.named_parameters())
    assert name != "Qwen3Moe" or layer.experts._given["w1"].data_ptr() == experts.gate_up_proj.data_ptr()
    for one in experts.parameters():
        one.requires_grad_(one.is_floating_point() and one.itemsize > 1)
    assert not adapter.layer_of(experts, 2, 9, launch="moe")(*given).requires_grad  # gradients are those of the model's own call
    setattr(experts, adapter.KNOWN, None)
    with pytest.raises(ProblemError, match=r"experts._apply_gate = '\w*Experts': must be an activation of the table"):
        adapter.layer_of(experts, 2, 9)


def test_what_moe_does_not_take_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reason alone: without it the same layer is taken."""
    experts, oss = (tiny(name, num_hidden_layers=1).model.layers[0].mlp.experts for name in ("Qwen3Moe", "GptOss"))
    adapter.prepare_layer(experts)
    adapter.prepare_layer(oss)
    x: Any = SimpleNamespace(is_cuda=True, device="cuda", dtype=torch.bfloat16, requires_grad=False)
    biased = tiny("GptOss", num_hidden_layers=1, hidden_size=128, intermediate_size=128).model.layers[0].mlp.experts
    for capturing in (True, False):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda capturing=capturing: capturing)
        adapter.prepare_first(biased, x)
        assert lies_by_rows(biased) != capturing  # a graph would hold the address of what is moved
    for capability, need in ((9, ""), (10, "biases, and channels that are no multiple of 128, need SM90")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: (capability, 0))
        assert [adapter.bf16_refusal(one, x) for one in (oss, biased, experts)] == [need, need, ""]
        assert adapter.bf16_refusal(tiny("Qwen3Moe", num_hidden_layers=1, moe_intermediate_size=96).model.layers[0].mlp.experts, x) == need
    for name, value, why in (
        ("has_post_expert_norm", True, "a norm follows each expert"),
        ("gate_up_proj", torch.nn.Parameter(experts.gate_up_proj.float()), "its weights are torch.float32, not torch.bfloat16"),
        ("gate_up_proj", torch.nn.Parameter(experts.gate_up_proj.half()), "its weights are torch.float16, not torch.bfloat16"),
    ):
        before = getattr(experts, name, False)
        setattr(experts, name, value)
        assert adapter.bf16_refusal(experts, x) == why
        setattr(experts, name, before)
    asks = SimpleNamespace(**{**vars(x), "requires_grad": True})
    for gate, why in ((("situ", None), "gradients are asked for, which its clamped activation has not"), (("silu", None), "")):
        setattr(experts, adapter.KNOWN, gate)
        with torch.enable_grad():
            assert (adapter.bf16_refusal(experts, asks), adapter.bf16_refusal(experts, x)) == (why, "")
    fp8 = fp8_experts()[0]
    for name, value, why in (
        ("gate_up_proj", fp8.gate_up_proj.bfloat16(), "its weights are torch.bfloat16 with scales of torch.float32"),
        ("gate_up_proj_scale_inv", fp8.gate_up_proj_scale_inv.double(), "its weights are torch.float8_e4m3fn with scales of torch.float64"),
        ("block_size", None, "its scales are of None, dynamic"),
        ("block_size", (64, 128), "its scales are of (64, 128), dynamic"),
    ):
        before = getattr(fp8, name)
        setattr(fp8, name, torch.nn.Parameter(value, requires_grad=False) if isinstance(value, torch.Tensor) else value)
        assert adapter.fp8_refusal(fp8, x) == why
        setattr(fp8, name, before)
    assert not adapter.fp8_refusal(fp8, x) and not adapter.bf16_refusal(experts, x)


def test_fp8_experts_fall_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    experts, given = fp8_experts()[0], (torch.zeros(1, 128).half(), torch.zeros(1, 2).long(), torch.ones(1, 2))
    monkeypatch.setitem(adapter.ALL_FP8_EXPERTS_FUNCTIONS._global_mapping, adapter.FALLBACK, lambda *called: called)
    assert adapter.fp8_experts_forward(experts, *given) == (experts, *given)


def test_other_ranks_experts_count_for_nothing() -> None:
    """With expert parallelism transformers names the experts of other ranks by numbers that no expert of this rank has."""
    experts = tiny("Qwen3Moe", num_hidden_layers=1).model.layers[0].mlp.experts
    x, idx = torch.randn(3, 128).bfloat16(), torch.tensor([[0, 4], [4, 4], [1, 3]])
    found = adapter.experts_forward(experts, x, idx, torch.full((3, 2), 0.5))
    alone = adapter.experts_forward(experts, x, torch.tensor([[0, -1], [-1, -1], [1, 3]]), torch.full((3, 2), 0.5))
    assert torch.equal(found, alone) and not found[1].any() and found[0].any()
