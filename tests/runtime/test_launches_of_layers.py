"""What launches of layers and GEMMs are given, where a call alone would go wrong as it does after another one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gemm_calls import gemm_call
from test_calls_in_a_row import FAMILIES, changes

from megamoe_dsl import MegaMoE, Problem, ProblemError, choose, gemm, k_grouped_gemm, quantize_both, random_weights
from megamoe_dsl.arch import SM90
from megamoe_dsl.kernels.moe.halves.config import RoutingTablesConfig
from megamoe_dsl.kernels.moe.layouts.symmetric import symmetric_buffer
from megamoe_dsl.runtime import custom_op, device_gemm, device_gradients
from megamoe_dsl.runtime.ep.layer import EpMoE
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from megamoe_dsl.shared_experts import SharedExperts
from recorded_gpu import SMS, Launched, recorded_gpu


def launches(family: str, change: str) -> list[Launched]:
    """Launches of the changed call on a GPU that has run nothing before."""
    calls, _, _ = FAMILIES[family]
    (found,) = calls.outcomes(changes(family)[change])
    assert isinstance(found, list), found
    return found


@pytest.mark.parametrize("family", ["MegaMoE", "EpMoE"])
def test_y_of_no_rows_is_somewhere(family: str) -> None:
    """An empty tensor has no address, and a kernel may look at the place that it never writes."""
    y = launches(family, "no token")[-1].arguments["y"]
    assert y != 0 and y is not None


PROBLEM = Problem(512, 256, 4, 2, 1, 64, recipe="fp8xfp8")
STAGES = ["dispatch", "fc1", "swiglu", "fc2", "combine"]


@pytest.mark.parametrize(
    ("arch", "recipe", "options", "copies", "computes"),
    [
        ("sm_90a", "fp8xfp8", {"shared_experts": 1}, {"first_shared": 4}, {}),
        ("sm_90a", "fp8xmxfp4", {"shared_experts": 1}, {"first_shared": 4}, {}),
        ("sm_90a", "fp8xmxfp4", {"fused": False}, {}, {"results": "results"}),
        ("sm_90a", "fp8xfp8", {"watchdog_ns": 77}, {}, {"watchdog_ns": 77}),
        ("sm_90a", "fp8xfp8", {"watchdog_ns": 77, "fused": False}, {}, {"watchdog_ns": 77, "results": "results"}),
        ("sm_90a", "fp8xfp8", {"pool_rows": 256}, {}, {}),
        ("sm_90a", "fp8xfp8", {"fused": False}, {}, {"results": "results"}),
        ("sm_100a", "nvfp4xnvfp4", {"reserved_sms": 2}, {"factors": "factors"}, {"factors": "factors"}),
    ],
)
def test_a_layer_s_options_reach_its_launches(
    arch: str, recipe: str, options: dict[str, Any], copies: dict[str, Any], computes: dict[str, Any]
) -> None:
    """BF16 tokens are quantized into the buffer, from which the layer, or each of its stages, makes y."""
    problem = replace(PROBLEM, recipe=recipe)
    shared, pool_rows = options.get("shared_experts", 0), options.get("pool_rows")
    given = {"x": torch.zeros(3, 512).bfloat16(), "topk_idx": torch.zeros(3, 2).long(), "topk_weights": torch.ones(3, 2)}
    with recorded_gpu(arch) as gpu:
        symmetric = SymmetricBuffer.allocate(SharedExperts(problem, shared).whole, pool_rows=pool_rows)
        layer = MegaMoE(problem, symmetric=symmetric, **options)
        gpu.show(sym=symmetric.sym, peers=symmetric.peers, watchdog=symmetric.watchdog, stats=layer.stats, **vars(layer.memory.weights))
        gpu.show(maps=layer.memory.maps, results=layer.memory.results)
        copy, *layers = gpu.call(layer, **given)
    places = {name: name for name in ("sym", "x", "topk_idx", "topk_weights")}
    assert copy.arguments == {**places, "num_tokens": 3, **copies}
    assert (copy.config.quantized, copy.config.shared, copy.config.pool_rows) == (False, shared, pool_rows)
    common = {name: name for name in ("sym", "peers", "y", "stats", "watchdog")}
    common |= {"num_tokens": 3, "rank": 0, "watchdog_ns": 60 * 10**9, "trace": 0, **computes}
    for one in layers:
        assert {name: one.arguments[name] for name in common} == common
        assert one.shape[0] == SMS - options.get("reserved_sms", 0) and one.config.pool_rows == pool_rows
    assert [getattr(one.config, "stage", "fused") for one in layers] == (["fused"] if options.get("fused", True) else STAGES)
    assert layers[0].arguments["maps"] == "maps"


def test_shared_experts_are_the_rank_s_own() -> None:
    problem = replace(PROBLEM, num_ranks=2)
    whole, given = SharedExperts(problem, 1).whole, {"topk_idx": torch.zeros(3, 2).long(), "topk_weights": torch.ones(3, 2)}
    with recorded_gpu() as gpu:
        memory = torch.zeros(symmetric_buffer(whole, SM90).size, dtype=torch.uint8)
        layer = MegaMoE(problem, symmetric=SymmetricBuffer(whole, 1, memory, torch.zeros(2, dtype=torch.int64)), shared_experts=1)
        copy, fused = gpu.call(layer, x=torch.zeros(3, 512).bfloat16(), **given)
    assert (copy.arguments["first_shared"], fused.arguments["rank"]) == (5, 1)


def test_a_layer_without_bf16_tokens_takes_no_few() -> None:
    """Which would be quantized by a launch that it was made without."""
    problem = replace(PROBLEM, recipe="fp8xmxfp4")
    with recorded_gpu():
        layer = MegaMoE(problem, symmetric=SymmetricBuffer.allocate(problem), bf16_inputs=False)
        with pytest.raises(ProblemError, match="x_sf = None: must be given: the layer was made with bf16_inputs=False"):
            layer(torch.zeros(3, 512).bfloat16(), torch.zeros(3, 2).long(), torch.ones(3, 2))
        assert layer.few is None


def test_a_pool_of_other_rows_and_copied_slots_are_refused() -> None:
    with recorded_gpu():
        symmetric = SymmetricBuffer.allocate(SharedExperts(PROBLEM, 1).whole)
        with pytest.raises(ProblemError, match="pool_rows = 256: must be left out, or None as of `symmetric`"):
            MegaMoE(PROBLEM, symmetric=symmetric, shared_experts=1, pool_rows=256)
        layer = MegaMoE(PROBLEM, symmetric=symmetric, shared_experts=1)
        with pytest.raises(ProblemError, match="shared_experts = 1: must be 0 for a call that copies nothing"):
            layer.input_buffers()


def test_scales_of_odd_places_are_refused_in_a_later_call_too() -> None:
    problem, scales = replace(PROBLEM, recipe="fp8xfp4"), torch.zeros(2 * 16 + 1, dtype=torch.uint8)
    given = {"x": torch.zeros(2, 512).to(torch.float8_e4m3fn), "topk_idx": torch.zeros(2, 2).long(), "topk_weights": torch.ones(2, 2)}
    with recorded_gpu("sm_100a") as gpu:
        symmetric = SymmetricBuffer.allocate(problem)
        layer = MegaMoE(problem, symmetric=symmetric)
        gpu.show(sym=symmetric.sym, peers=symmetric.peers, watchdog=symmetric.watchdog, stats=layer.stats, **vars(layer.memory.weights))
        gpu.show(maps=layer.memory.maps)
        assert len(gpu.call(layer, **given, x_sf=scales[:-1].view(2, 16))) == 2
        with pytest.raises(ProblemError, match=r"x_sf\.data_ptr\(\) = \d+: must be a multiple of 4"):
            layer(**given, x_sf=scales[1:].view(2, 16))


def test_gradients_need_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which neither a graph's call nor one with a place for y has."""
    problem = replace(PROBLEM, recipe="bf16xbf16")
    given = {"x": torch.zeros(3, 512).bfloat16(), "topk_idx": torch.zeros(3, 2).long(), "topk_weights": torch.ones(3, 2)}
    with recorded_gpu() as gpu:
        layer = EpMoE(problem, random_weights(problem, 0, 0), activation=torch.nn.Identity())
        monkeypatch.setattr(layer, "untraced_call", lambda *_: "trained")
        layer.memory.weights.fc1.requires_grad_()
        assert layer(**given) == "trained"
        with pytest.raises(ProblemError, match=r"out = \(3, 512\): must be None where gradients are asked for"):
            layer(**given, out=torch.zeros(3, 512).bfloat16())
        gpu.capture = 1
        with pytest.raises(ProblemError, match="capture = True: must be False where gradients are asked for"):
            layer(**given)


def test_gemms_are_chosen_as_calls_ask_and_without_rows_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, given = list[bool](), gemm_call("fp8xfp8").arguments
    monkeypatch.setattr(device_gemm, "choose", lambda *of, batch_invariant: asked.append(batch_invariant) or choose(*of))
    with recorded_gpu() as gpu:
        for invariant in (False, True):
            assert len(gpu.call(gemm, **given, batch_invariant=invariant)) == 1
        assert asked == [False, True]
        for dtype in (torch.bfloat16, torch.float32):
            assert gemm(**{**given, "out": None}, out_dtype=dtype).dtype == dtype
        assert gpu.call(gemm, **{**given, **{name: given[name][:0] for name in ("a", "a_sf", "out")}}) == []


def test_bytes_of_scales_become_words() -> None:
    """Of both operands; words are read where they are."""
    words = gemm_call("fp8xfp4").arguments
    given = {**words, "a_sf": torch.zeros(40, 8, dtype=torch.uint8), "b_sf": torch.zeros(208, 8, dtype=torch.uint8)}
    with recorded_gpu("sm_100a") as gpu:
        (made,), (kept,) = (gpu.call(gemm, **one) for one in (given, words))
    assert [kept.arguments[name] for name in ("a_sf", "b_sf")] == ["a_sf", "b_sf"]
    assert not {"a_sf", "b_sf"} & {made.arguments["a_sf"], made.arguments["b_sf"]}


def test_rows_of_none_launch_nothing_and_their_sums_are_zero() -> None:
    """A kernel makes the codes that a call wants, of the rows alone or of columns."""
    x, side = torch.zeros(128, 256).bfloat16(), {name: torch.zeros(32, 0, dtype=torch.float8_e4m3fn) for name in ("left", "right")}
    given = {**side, "left_sf": torch.zeros(0, 32), "right_sf": torch.zeros(0, 32), "ends": torch.zeros(2, dtype=torch.int32)}
    with recorded_gpu() as gpu:
        assert gpu.call(quantize_both, x=x[:0]) == []
        for rows in (True, False):
            (one,) = gpu.call(quantize_both, x=x, rows=rows)
            assert one.config.problem.rows == rows and bool(one.arguments["codes"]) == bool(one.arguments["scales"]) == rows
        for dtype, value in ((torch.bfloat16, 0), (torch.float32, 1)):
            out = torch.ones(2, 32, 32, dtype=dtype)
            assert gpu.call(k_grouped_gemm, **given, out=out) == [] and (out == value).all()


@pytest.mark.parametrize("transposed", [False, True])
def test_weights_of_mxfp8_are_quantized_as_they_lie_or_transposed(transposed: bool) -> None:
    """By the kernel of rows and columns, which is given what it has to make and 0 for the rest."""
    w = torch.zeros(4, 256, 384, dtype=torch.bfloat16)
    with recorded_gpu("sm_100a") as gpu:
        (one,) = gpu.call(device_gradients.quantize_weights, w=w, transposed=transposed, recipe="mxfp8xmxfp8")
    turned, kept = {"codes_t": "y0", "scales_t": "y1"}, {"codes": "y0", "scales": "y1"}
    made = {**dict.fromkeys((*turned, *kept, "sources"), 0), **(turned if transposed else kept)}
    assert one.arguments == {"x": "w", **made, "num_rows": 4 * 256}
    problem = one.config.problem
    found = problem.hidden, problem.matrix_rows, problem.gathered, problem.rows, problem.columns
    assert found == (384, 256, False, not transposed, transposed)


def test_an_operator_gives_a_layer_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound, with which a compiled call chooses its kernel, and y."""
    given: list[Any] = []
    layer = SimpleNamespace(launch=lambda *found: given.append(found) or torch.empty(5, 256, dtype=torch.bfloat16))
    monkeypatch.setattr(custom_op, "layer_of", {3: layer}.__getitem__)
    x, y = torch.zeros(2, 5, 256, dtype=torch.bfloat16)
    tensors = x, torch.ones(5, 2), torch.zeros(5, 2, dtype=torch.int64), torch.ones(5, 2)
    custom_op.mega_moe(*tensors, torch.zeros(1), 3, 8)
    custom_op.mega_moe_out(y, *tensors, torch.zeros(1), 3, 8)
    for (found, bound, out), wanted in zip(given, (None, y), strict=True):
        assert [one.data_ptr() for one in found] == [one.data_ptr() for one in tensors]
        assert bound == 8 and (out is None) == (wanted is None) and (out is None or out.data_ptr() == y.data_ptr())


def test_indices_of_32_bits_are_widened() -> None:
    """The kernels read 64 bits an index."""
    assert launches("MegaMoE", "topk_idx, another")[0].arguments["topk_idx"] == "topk_idx"
    assert launches("MegaMoE", "int32")[0].arguments["topk_idx"] == "elsewhere"


@pytest.mark.parametrize("family", ["EpMoE", "MegaMoE"])
def test_a_layer_without_tokens_has_an_address_for_y(family: str) -> None:
    *_, last = (one.arguments for one in launches(family, "no token"))
    assert last["num_tokens"] == 0 and last["y"] == ("first nowhere" if family == "EpMoE" else "elsewhere")


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_gemm_adds_if_asked(accumulate: bool) -> None:
    (launched,) = launches("gemm bf16xbf16", "added" if accumulate else "f32")
    assert launched.config.problem.accumulate is accumulate


def test_every_gemm_has_a_result_of_its_own() -> None:
    given = {"a": torch.zeros(6, 64, dtype=torch.bfloat16), "a_sf": None, "b": torch.zeros(16, 64, dtype=torch.bfloat16), "b_sf": None}
    with recorded_gpu() as gpu:
        (_,), first = gpu.call(gemm, **given), gpu.tensors["y"]
        (again,), second = gpu.call(gemm, **given), gpu.tensors["y"]
        assert first.data_ptr() != second.data_ptr() and again.arguments["d"] == "y"


def test_inputs_that_lie_in_the_buffer_are_not_copied() -> None:
    """Unless one of them lies elsewhere, or is not the first row."""
    with recorded_gpu() as gpu:
        layer = MegaMoE(PROBLEM, symmetric=SymmetricBuffer.allocate(PROBLEM))
        places = vars(layer.input_buffers())

        def launched(rows: slice, **others: torch.Tensor) -> int:
            given = {name: one[rows] for name, one in places.items()} | others
            return len(gpu.call(layer, **given))

        assert (launched(slice(3)), launched(slice(1, 4))) == (1, 2)
        assert [launched(slice(3), **{name: one[:3].clone()}) for name, one in places.items()] == [2] * 4


def test_each_dispatch_has_tables_of_its_own() -> None:
    problem = replace(PROBLEM, recipe="bf16xbf16")
    with recorded_gpu():
        layer = EpMoE(problem, random_weights(problem, 0, 0), activation=torch.nn.Identity())
        config = layer.dispatch_config
        other = config.replace(token_saving=not config.token_saving)
        kernels = [layer.tables_for(one) for one in (config, other)]
        assert kernels[0] is layer.tables_for(config) is not kernels[1] is layer.tables_for(other)
        assert [one.artifact.config for one in kernels] == [RoutingTablesConfig.of(one) for one in (config, other)]
