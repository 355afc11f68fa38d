"""What the launches of `moe` are given, whose memory and counters they have, and calls of two threads."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
import torch
from test_calls_in_a_row import FEW, TOKENS, TRAINED, chosen, hashed, routed, train

from calls_in_a_row import Call
from megamoe_dsl import MegaMoE, Problem, ProblemError, gemm, moe
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.kernels import expert_layer
from megamoe_dsl.kernels.expert_layer import ExpertLayer, chosen_experts, workspace
from megamoe_dsl.kernels.expert_routing.config import RouteConfig
from megamoe_dsl.kernels.expert_routing.problem import SumProblem
from megamoe_dsl.kernels.registry import kernel_of
from megamoe_dsl.runtime import call_plan, device_gradients, expert_plan, experts
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from megamoe_dsl.runtime.top_experts import top_experts
from recorded_gpu import RecordedGpu, recorded_gpu

GIVEN = chosen("fp8xfp8").arguments
STREAM, OTHER = "memory of stream 0", "memory of stream 7"


def launches(gpu: RecordedGpu, **changes: Any) -> list[dict[str, Any]]:
    """Arguments of each launch of a call."""
    return [one.arguments for one in gpu.call(moe, **{**GIVEN, **changes})]


def launches_of(gpu: RecordedGpu, call: Call) -> list[dict[str, Any]]:
    return [one.arguments for one in gpu.call(moe, **call.arguments)]


def at(place: int) -> str:
    """So many bytes into the memory of stream 0."""
    return f"{STREAM} + {place}" if place else STREAM


def layer_of(given: dict[str, Any], **fields: Any) -> ExpertLayer:
    """A layer of these weights and two experts a token."""
    experts, rows, hidden = given["w1"].shape
    return ExpertLayer(hidden, rows // 2, experts, 2, **fields)


def test_each_launch_gets_what_the_one_before_leaves() -> None:
    given, stored = chosen("fp8xfp8").arguments, torch.zeros(2 * TOKENS, 512, dtype=torch.bfloat16)
    region = workspace(layer_of(given, preactivations=True), TOKENS)
    with recorded_gpu() as gpu:
        route, fc1, fc2, total = launches(gpu, preactivations=stored)
    places = {name: at(region.offset(name)) for name in ("x_q", "x_sf", "ends", "sources", "positions", "table", "h", "h_sf", "rows")}
    passed = {name: places[name] for name in ("x_q", "x_sf", "ends", "sources", "positions", "table")}
    assert route == {"x": "x", "topk_idx": "topk_idx", **passed, "counter": "counters", "num_tokens": TOKENS}
    assert total == {"rows": places["rows"], "positions": places["positions"], "weights": "topk_weights", "y": "y", "num_tokens": TOKENS}
    first = {"a": "x_q", "a_sf": "x_sf", "groups": "ends", "sources": "sources", "d": "h", "d_sf": "h_sf"}
    assert {name: fc1[name] for name in first} == {name: places[one] for name, one in first.items()}
    assert (fc1["b"], fc1["b_sf"], fc1["m"], fc1["preactivations"], fc1["weights_map"][0]) == (
        "w1",
        "w1_sf",
        2 * TOKENS,
        "preactivations",
        "w1",
    )
    second = {"a": "h", "a_sf": "h_sf", "groups": "ends", "d": "rows"}
    assert {name: fc2[name] for name in second} == {name: places[one] for name, one in second.items()}
    assert (fc2["b"], fc2["b_sf"], fc2["m"], fc2["weights_map"][0]) == ("w2", "w2_sf", 2 * TOKENS, "w2")
    assert (fc2["tokens_map"][0], fc2["sfa_map"][0], fc2["d_map"][0]) == (places["h"], places["h_sf"], places["rows"])


def test_columns_of_linear2_are_summed_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the second call, which has been prepared for other tensors."""
    monkeypatch.setattr(expert_layer, "ROWS_BYTES", 1)
    wide = {"x": torch.zeros(TOKENS, 512).bfloat16(), "w1": torch.zeros(4, 512, 512).bfloat16(), "w2": torch.zeros(4, 512, 256).bfloat16()}
    biases = {"w1_sf": None, "w2_sf": None, "w1_bias": torch.zeros(4, 512), "w2_bias": torch.zeros(4, 512)}
    with recorded_gpu() as gpu:
        for _ in range(2):
            _, _, *parts = launches(gpu, **wide, **biases, topk_weights=torch.ones(TOKENS, 2))
    fc2, total = parts[::2], parts[1::2]
    assert [(one["b"], one["bias"]) for one in fc2] == [("w2", "w2_bias"), (f"w2 + {256 * 512}", f"w2_bias + {256 * 4}")]
    assert fc2[0]["d"] == fc2[1]["d"] == total[0]["rows"] == total[1]["rows"]
    assert [(one["y"], one["weights"]) for one in total] == [("y", "topk_weights"), ("y + 512", "topk_weights")]
    rows = [one["weights_map"][2] for one in fc2]
    assert rows == [(512, 3 * 512 + 256)] * 2  # of B: what lies behind the last expert's part is not read


def test_experts_of_logits_lie_before_the_rest() -> None:
    weights = at(chosen_experts(TOKENS, 2).offset("topk_weights"))
    with recorded_gpu() as gpu:
        top, route, _, _, total = launches_of(gpu, routed())
    assert top == {"logits": "router_logits", "bias": "score_bias", "topk_idx": STREAM, "topk_weights": weights, "num_tokens": TOKENS}
    assert (route["x"], route["topk_idx"], total["weights"]) == ("x", STREAM, weights)
    assert route["x_q"] == at(chosen_experts(TOKENS, 2).size)


def test_logits_are_where_tokens_are() -> None:
    given = routed().but(score_bias=None, scores="softmax").arguments
    with recorded_gpu() as gpu:
        gpu.mode.far = {given["router_logits"].untyped_storage().data_ptr()}
        with pytest.raises(ProblemError, match=r"router_logits\.device = .*cuda.*1.*: must be cuda:0"):
            moe(**given)


@pytest.mark.parametrize("names", [("replicas",), ("token_ids", "hash_table"), ("token_ids", "hash_table", "replicas")])
def test_a_router_s_launch_gets_the_tables_that_there_are(names: tuple[str, ...]) -> None:
    tables = {name: hashed().arguments[name] for name in names}
    with recorded_gpu() as gpu:
        top, *_ = launches_of(gpu, routed().but(score_bias=None, scores="softmax", replica_shift=3, **tables))
    wanted = {name: name if name in names else 0 for name in ("token_ids", "hash_table", "replicas")}
    assert {name: top[name] for name in wanted} == wanted and top["bias"] == 0
    assert (top["hash_rows"], top["replica_shift"]) == (9 if "hash_table" in names else 0, 3)


def test_all_launches_may_begin_early() -> None:
    with recorded_gpu() as gpu:
        assert all(one.early for one in gpu.call(moe, **chosen("fp8xfp8").arguments))


@pytest.mark.parametrize(("arch", "recipe", "clusters"), [("sm_90a", "fp8xfp8", {1}), ("sm_100a", "fp8xfp4", {1, 2})])
def test_launches_have_the_shape_of_their_configurations(arch: str, recipe: str, clusters: set[int]) -> None:
    with recorded_gpu(arch) as gpu:
        found = gpu.call(moe, **chosen(recipe).arguments)
    for one in found:
        config, smem = one.config, kernel_of(one.config).dynamic_smem(one.config)
        assert one.shape == (config.num_sms, config.num_threads, config.cluster, smem)
    assert {one.config.cluster for one in found} == clusters


def test_memory_and_counters_are_a_stream_s() -> None:
    """Of a graph's they are its own, for it may run beside the stream that it was captured on."""
    found: dict[str, tuple[str, set[str]]] = {}
    with recorded_gpu() as gpu:
        for name, stream, capture in (("0", 0, None), ("7", 7, None), ("captured", 7, 1), ("again", 7, 2), ("back", 0, None)):
            gpu.stream, gpu.capture = stream, capture
            calls = [gpu.call(moe, **chosen("fp8xfp8").arguments) for _ in range(3)]
            assert {one.stream for call in calls for one in call} == {stream}
            counters = {one.arguments["counter"] for call in calls for one in call if "counter" in one.arguments}
            found[name] = calls[-1][0].arguments["x_q"], counters
    assert found["0"] == found["back"] and found["0"][0] == STREAM and found["7"][0] == OTHER
    assert found["captured"][0] == found["again"][0] == "memory of a capture"
    counters = [found[name][1] for name in ("0", "7", "captured", "again")]
    assert all(len(one) == 3 for one in counters) and len(set.union(*counters)) == 12


def test_calls_in_one_graph_have_memory_of_their_own() -> None:
    with recorded_gpu() as gpu:
        gpu.capture = 1
        for _ in range(2):
            launches(gpu)
        captured = [tensor for name, tensor in gpu.tensors.items() if "capture" in name]
    assert len({one.data_ptr() for one in captured}) == len(captured) == 2


def test_launches_in_a_row_deal_tiles_from_different_counters() -> None:
    """Linear2 may begin while the one of the call before has not ended."""
    with recorded_gpu() as gpu:
        counters = [[one.get("counter") for one in launches(gpu)] for _ in range(3)]
    assert [one[:2] for one in counters] == [["counters", "counters"]] * 3
    assert [one[2] for one in counters] == ["counters + 4", "counters + 8", "counters + 4"]


def trained(recipe: str, **changes: Any) -> Call:
    given = chosen("bf16xbf16").but(**changes).arguments
    return Call({**{name: given[name] for name in TRAINED}, "dy": torch.zeros(TOKENS, 256).bfloat16(), "recipe": recipe})


def test_a_training_step_on_a_gpu_routes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In BF16: the backward pass reads what the first launch has written for it, which calls after the step do not.  Autograd's thread may
    be a new one."""
    call, events = trained("bf16xbf16"), list[str]()
    for module in (experts, device_gradients):
        monkeypatch.setattr(module, "bind_context", lambda: events.append("bound"))
    with recorded_gpu() as gpu:
        gpu.on_launch = lambda artifact: events.append("launch")
        route, fc1, fc2, total, rows, tokens, dx, w1, w2 = (one.arguments for one in gpu.call(train, **call.arguments))
        given = {name: call.arguments[name] for name in (*TRAINED, "recipe")}
        after = launches(gpu, **given, w1_sf=None, w2_sf=None, preactivations=torch.zeros(2 * TOKENS, 512).bfloat16())
    ends, sources, positions = (route[name] for name in ("ends", "sources", "positions"))
    assert (ends, sources, positions) == tuple(f"torch.int32 {shape}, made" for shape in ((4,), (2 * TOKENS,), (TOKENS, 2)))
    assert {one["groups"] for one in (fc1, fc2, rows, tokens, w1, w2)} == {ends}
    assert {one["sources"] for one in (fc1, rows, w1, w2)} == {sources} and total["positions"] == dx["positions"] == positions
    assert rows["dots"] == f"torch.float32 (2, {2 * TOKENS}), made"
    assert events == ["bound", *["launch"] * 4, "bound", *["launch"] * (5 + len(after))]
    ends, sources, positions = (after[0][name] for name in ("ends", "sources", "positions"))
    assert all(one.startswith(STREAM) for one in (ends, sources, positions))
    assert after[1]["groups"] == after[2]["groups"] == ends and (after[1]["sources"], after[3]["positions"]) == (sources, positions)


@pytest.mark.parametrize(("indices", "name"), [(torch.int64, "i64"), (torch.int32, "i32")])
def test_both_passes_of_a_step_in_e4m3_route_what_they_are_given(indices: torch.dtype, name: str) -> None:
    """And quantize all experts' weights, W1 for each pass and W2 for each."""
    call = trained("fp8xfp8", topk_idx=torch.zeros(TOKENS, 2, dtype=indices))
    with recorded_gpu() as gpu:
        found = gpu.call(train, **call.arguments)
    assert [one.config.indices for one in found if isinstance(one.config, RouteConfig)] == [name, name]
    assert [one.arguments["num_matrices"] for one in found if "num_matrices" in one.arguments] == [4] * 4


def test_a_gradient_that_is_one_number_is_written_out() -> None:
    """As that of y.sum() comes: the rows that kernels read lie in memory of their own."""
    call = trained("bf16xbf16").but(dy=torch.zeros(1, 1).bfloat16().expand(TOKENS, 256))
    with recorded_gpu() as gpu:
        assert all("dy" not in one.arguments.values() for one in gpu.call(train, **call.arguments))


@pytest.mark.parametrize("stage", ["route", "quantize_weights", "row_gradients", "weight_gradients"])
def test_a_stage_refuses_what_tma_cannot_read(stage: str) -> None:
    """A gradient that autograd hands on may lie anywhere, and so may buffers of a trainer."""
    odd = torch.zeros(TOKENS * 256 + 1, dtype=torch.bfloat16)[1:].view(TOKENS, 256)
    whole, none, idx = torch.zeros(4, 256, 256).bfloat16(), torch.zeros(4, 256, 0).byte(), torch.zeros(TOKENS, 2, dtype=torch.int64)
    total, rows = torch.zeros(4 * 256 * 256 + 1)[1:].view(4, 256, 256), torch.zeros(2 * TOKENS, dtype=torch.int32)
    given: dict[str, tuple[str, Any]] = {
        "route": ("dy", (odd, idx, 4, "fp8xfp8")),
        "quantize_weights": ("w", (odd[None, :, :128], False, "fp8xfp8")),
        "row_gradients": ("dy", (odd, none, torch.ones(TOKENS, 2), whole, none, odd, rows[:4], rows, idx, "gate_first", "silu")),
        "weight_gradients": ("main_grads", (total, odd, odd, rows[:4], rows, False)),
    }
    name, arguments = given[stage]
    with recorded_gpu() as gpu:
        with pytest.raises(ProblemError, match=rf"^{name}\.data_ptr\(\) = \d+: must be a multiple of 16"):
            getattr(device_gradients, stage)(*arguments)
        assert not gpu.launched()


@pytest.mark.parametrize("recipe", ["bf16xbf16", "fp8xfp8"])
def test_both_passes_of_a_step_have_the_counters_of_their_stream(recipe: str) -> None:
    counters: dict[int, set[str]] = {}
    with recorded_gpu() as gpu:
        for gpu.stream in (0, 7):
            found = gpu.call(train, **trained(recipe).arguments)
            counters[gpu.stream] = {one.arguments["counter"] for one in found if one.arguments.get("counter")}
    assert all(counters.values()) and not counters[0] & counters[7]


def interrupted(call: Any, few: int = 20, many: int = 40) -> list[Any]:
    """Arguments of all launches where, in the middle of a call, another thread makes the same: each thread's rows are its own."""

    def elsewhere() -> None:
        with gpu.mode:
            call(few)

    second = Thread(target=elsewhere)

    def interrupt(artifact: Artifact) -> None:
        if not second.ident:
            second.start()
            second.join(0.2)

    with recorded_gpu() as gpu:
        for tokens in (few, many):
            call(tokens)  # so that no thread has anything to make
        gpu.call(lambda: torch.zeros(1))
        gpu.on_launch = interrupt
        call(many)
        second.join()
        return [one.arguments.get("num_tokens", one.arguments.get("m")) for one in gpu.launched()]


def test_a_thread_waits_for_another_s_call() -> None:
    """Its launches, on the same stream, come after all of the first one's."""
    assert interrupted(lambda tokens: moe(**chosen("fp8xfp8", tokens).arguments)) == [40, 80, 80, 40, 20, 40, 40, 20]


def test_a_thread_waits_for_another_s_gemm() -> None:
    given = {"a": torch.zeros(40, 64, dtype=torch.bfloat16), "b": torch.zeros(16, 64, dtype=torch.bfloat16)}
    assert interrupted(lambda tokens: gemm(given["a"][:tokens], None, given["b"], None)) == [40, 20]


def test_a_thread_waits_for_another_s_router() -> None:
    assert interrupted(lambda tokens: top_experts(torch.zeros(tokens, 8), 2)) == [40, 20]


def test_a_thread_waits_for_another_s_gradients() -> None:
    def summed(tokens: int) -> torch.Tensor:
        rows, positions = torch.zeros(2 * tokens, 256, dtype=torch.bfloat16), torch.zeros(tokens, 2, dtype=torch.int32)
        return device_gradients.sum_rows(rows, positions, torch.ones(tokens, 2))

    assert interrupted(summed) == [40, 20]


def test_a_thread_waits_for_another_s_few_tokens() -> None:
    layers: list[MegaMoE] = []

    def call(tokens: int) -> torch.Tensor:
        problem = Problem(512, 256, 4, 2, 1, 64, recipe="fp8xmxfp4")
        layer = layers[0] if layers else layers.append(MegaMoE(problem, symmetric=SymmetricBuffer.allocate(problem))) or layers[0]
        return layer(torch.zeros(tokens, 512).bfloat16(), torch.zeros(tokens, 2, dtype=torch.int64), torch.ones(tokens, 2))

    assert interrupted(call, 2, 3) == [3, 2]


def test_gate_and_up_go_where_a_call_says() -> None:
    """Also where a call's weights have been prepared for another place."""
    with recorded_gpu() as gpu:
        for _ in range(2):
            place = torch.zeros(2 * TOKENS, 512, dtype=torch.bfloat16)
            assert launches(gpu, preactivations=place)[1]["preactivations"] == "preactivations"
        odd = torch.zeros(2 * TOKENS * 512 + 1, dtype=torch.bfloat16)[1:].view(2 * TOKENS, 512)
        with pytest.raises(ProblemError, match=r"preactivations\.data_ptr\(\) = \d+: must be a multiple of 16"):
            launches(gpu, preactivations=odd)


def test_memory_holds_all_of_a_call() -> None:
    given = routed().arguments
    size = workspace(layer_of(given), TOKENS).size
    with recorded_gpu() as gpu:
        gpu.call(moe, **given)
        assert gpu.tensors[STREAM].numel() >= chosen_experts(TOKENS, 2).size + size


def test_the_number_of_tokens_chooses_kernels() -> None:
    """For 3000 tokens others than for 17."""
    with recorded_gpu() as gpu:
        found = [[one.config for one in gpu.call(moe, **chosen("fp8xfp8", tokens).arguments)] for tokens in (17, 3000)]
    few, many = found
    assert few[1].block_m < many[1].block_m and few[2].block_m < many[2].block_m


def test_a_recipe_is_chosen_by_weights_or_given() -> None:
    given = chosen("fp8xfp4").arguments
    with recorded_gpu("sm_100a") as gpu:
        calls = [gpu.call(moe, **given, recipe=recipe) for recipe in (None, "mxf4xmxf4")]
    found = [{one.config.problem.recipe for one in launches[:3]} for launches in calls]
    assert found == [{"fp8xfp4"}, {"mxf4xmxf4"}]


def test_rows_choose_a_gemm() -> None:
    b = torch.zeros(256, 64, dtype=torch.bfloat16)
    with recorded_gpu() as gpu:
        few, many, again = (gpu.call(gemm, a=b.new_zeros(rows, 64), a_sf=None, b=b, b_sf=None)[0].config for rows in (8, 4000, 8))
    assert few == again and few.block_m < many.block_m


def test_what_is_kept_of_calls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_plan, "MOST", 2)
    monkeypatch.setattr(expert_plan, "PREPARED", 2)
    with recorded_gpu() as gpu:
        for tokens in (21, 22, 23, 21):
            given = chosen("fp8xfp8", tokens).arguments
            for _ in range(3):
                found = gpu.call(moe, **{**given, "w1": given["w1"].clone()})
            assert [found[0].arguments["num_tokens"], found[1].arguments["b"]] == [tokens, "w1"]
            assert len(experts._PLANS._made) <= 2
            assert all(len(plan._prepared) <= 2 for plan in experts._PLANS._made.values())
        assert isinstance(found[3].config.problem, SumProblem)


def test_a_few_tokens_take_one_launch() -> None:
    """With experts chosen, or chosen from logits in a launch before; as many tokens as fit a tile of rows."""
    with recorded_gpu() as gpu:
        (one,) = gpu.call(moe, **chosen("fp8xfp8", FEW).arguments)
        top, of_logits = (launch.arguments for launch in gpu.call(moe, **routed(FEW).arguments))
        most, more = (gpu.call(moe, **chosen("fp8xfp8", tokens).arguments) for tokens in (16, 17))
    weights = {name: name for name in ("w1", "w1_sf", "w2", "w2_sf")}
    given = {"x": "x", "topk_idx": "topk_idx", "topk_weights": "topk_weights", "y": "y", "num_tokens": FEW}
    memory = {"stats": 0, "memory": one.arguments["memory"]}
    assert {name: value for name, value in one.arguments.items() if not name.endswith("_map")} == {**given, **weights, **memory}
    assert (one.arguments["fc1_weights_map"][0], one.arguments["fc2_weights_map"][0]) == ("w1", "w2") and one.early
    assert (of_logits["topk_idx"], of_logits["topk_weights"]) == (top["topk_idx"], top["topk_weights"])
    assert one.config.block_m == 8 and (len(most), most[0].config.block_m, len(more)) == (1, 16, 4)


def test_what_one_launch_cannot_do_takes_four() -> None:
    """Gate and up stored, biases, and Blackwell."""
    given = chosen("fp8xfp8", FEW).arguments
    biases = {"w1_bias": torch.zeros(4, 512), "w2_bias": torch.zeros(4, 256)}
    with recorded_gpu() as gpu:
        assert [len(launches(gpu, **{**given, **more})) for more in ({"preactivations": torch.zeros(2 * FEW, 512).bfloat16()}, biases)] == [
            4,
            4,
        ]
    with recorded_gpu("sm_100a") as gpu:
        assert len(gpu.call(moe, **chosen("fp8xfp4", FEW).arguments)) == 4


def test_results_of_one_launch_are_a_stream_s() -> None:
    """All layers with as many bytes of them share them; tiles of 8 and of 16 rows have different ones."""
    found = {}
    with recorded_gpu() as gpu:
        for name, stream, capture in (("0", 0, None), ("7", 7, None), ("captured", 7, 1), ("again", 7, 2), ("back", 0, None)):
            gpu.stream, gpu.capture = stream, capture
            calls = [{**chosen("fp8xfp8", tokens).arguments, "activation": one} for tokens in (1, 8, 9) for one in ("silu", "situ")]
            found[name] = {gpu.call(moe, **one)[0].arguments["memory"] for one in calls}
    assert all(len(one) == 2 for one in found.values()) and found["0"] == found["back"] and len(set.union(*found.values())) == 8
