"""Mutants of what is kept of calls of `moe`, and of their launches."""

from __future__ import annotations

from host_mutant import BOUNDED, LOGITS, MOE, STREAMS, THREADS, TURNS, bf16, fp8, host, nvfp4, pairs, routed
from mutant import Mutant

PARTS = {
    "the dtypes": ("tensor.dtype", fp8("x, of another dtype")),
    "the shapes": ("tensor.shape", fp8("fewer tokens")),
    "the strides": ("tensor.is_contiguous()", fp8("x, strided")),
    "the devices": ("tensor.get_device()", fp8("topk_idx, far")),
}
KEY = [part for part, _ in PARTS.values()]
KEYS = tuple(
    host(
        f"a plan is kept whatever {what}",
        "stale buffer",
        "CallPlans.of",
        f"({', '.join(KEY)})",
        f"({', '.join(one for one in KEY if one != part)},)",
        test,
    )
    for what, (part, test) in PARTS.items()
)
PLANS = (
    host("a plan is kept whatever the options", "stale buffer", "CallPlans.of", "key = others", "key = ()", fp8("up first")),
    host("the last plan serves every call", "stale buffer", "CallPlans.of", "last[0] == key", "last[0]", fp8("more tokens")),
    host("plans are kept without a bound", "missing clean-up", "CallPlans.of", "if len(self._made) >= MOST: self.clear()", "", BOUNDED),
    host(
        "plans without gate and up in their key",
        "stale buffer",
        "experts:launch",
        "given[-4:]",
        "('gate_first', *given[-3:])",
        fp8("up first"),
    ),
    host(
        "plans without an activation in their key",
        "stale buffer",
        "experts:launch",
        "given[-4:]",
        "(given[-4], 'silu', *given[-2:])",
        fp8("another activation"),
    ),
    host(
        "plans without the router's options in their key",
        "stale buffer",
        "experts:moe",
        "(choice, layouts)",
        "((2, 'sigmoid', 1, 1, 1.0, 0), layouts)",
        routed("scaled"),
    ),
)
PREPARED_KEY = (
    "(start, place if self._experts.maps_x else 0, "
    "*[tensor.data_ptr() for tensor in (*given.weights, given.factors) if tensor is not None])"
)


def prepared(what: str, old: str, new: str, *nearest: str) -> Mutant:
    """What was prepared for one call is taken for another."""
    assert old in PREPARED_KEY
    name = f"prepared launches are kept whatever {what}"
    return host(name, "stale buffer", "ExpertPlan.__call__", PREPARED_KEY, PREPARED_KEY.replace(old, new), *nearest)


def called(name: str, kind: str, old: str, new: str, *nearest: str) -> Mutant:
    return host(name, kind, "ExpertPlan.__call__", old, new, *nearest)


CHECK_CURRENT = "if index != torch._C._cuda_getDevice(): check_current(self._device, 'x.device')"
PREPARED = (
    prepared("the weights", "(*given.weights, given.factors)", "(given.factors,)", fp8("another layer of the shape")),
    prepared("the scales", "(*given.weights, given.factors)", "(*given.weights[::2], given.factors)", fp8("w1_sf, another")),
    prepared("W1", "(*given.weights, given.factors)", "(*given.weights[1:], given.factors)", fp8("w1, another")),
    prepared("W2 and its scales", "(*given.weights, given.factors)", "(*given.weights[:2], given.factors)", fp8("w2, another")),
    prepared("W2's scales", "(*given.weights, given.factors)", "(*given.weights[:3], given.factors)", fp8("w2_sf, another")),
    prepared("the factors", "(*given.weights, given.factors)", "given.weights", nvfp4("factors, another")),
    prepared("x's place", "place if self._experts.maps_x else 0", "0", pairs("x, another")),
    prepared("the memory between launches", "start, place", "0, place", fp8("another stream")),
    host(
        "prepared launches are kept without a bound",
        "missing clean-up",
        "ExpertPlan._prepare",
        "if len(self._prepared) >= PREPARED: self._prepared.clear()",
        "",
        BOUNDED,
    ),
    host("other weights are not checked", "too narrow", "ExpertPlan._prepare", "call.check()", "", fp8("w2, shifted")),
    host(
        "a plan's workspace begins with the experts",
        "wrong base",
        "ExpertPlan._prepare",
        "memory[before:before + self._size]",
        "memory[:self._size]",
        LOGITS,
    ),
    called("another current device is not noticed", "too narrow", CHECK_CURRENT, "", fp8("another device")),
    called("an x of any place is taken", "too narrow", "place % TMA_ALIGNMENT", "place % 2", fp8("x, shifted")),
    called(
        "gate and up go to any place",
        "too narrow",
        "check_aligned('preactivations', given.preactivations, TMA_ALIGNMENT)",
        "",
        "tests/runtime/test_launches_of_moe.py::test_gate_and_up_go_where_a_call_says",
    ),
    called(
        "gate and up go where the first call stored them",
        "stale buffer",
        "fc1['preactivations'] = given.preactivations.data_ptr()",
        "",
        "tests/runtime/test_launches_of_moe.py::test_gate_and_up_go_where_a_call_says",
    ),
    called("Linear1 reads the first call's x", "stale buffer", "{'a': place} if self._experts.moves_x else {}", "{}", bf16("x, another")),
    called("a router's weights lie where its experts do", "wrong base", "start + self._weights_at", "start", LOGITS),
    called(
        "memory without room for a router's experts", "too narrow", "before + self._size", "self._size", f"{MOE}memory_holds_all_of_a_call"
    ),
    called("two threads call at once", "missing order", "LAUNCHES", "torch.no_grad()", f"{THREADS}_for_another_s_call"),
    called("the router chooses by the first call's bias", "stale buffer", "*routing", "routing[0], None", LOGITS),
    called(
        "what a call stores is the first's counter",
        "wrong base",
        "self._experts.stream_state.of(stream, capturing)",
        "self._experts.stream_state.of(0, capturing)",
        STREAMS,
    ),
    called(
        "a captured call has a stream's counter",
        "wrong base",
        "self._experts.stream_state.of(stream, capturing)",
        "self._experts.stream_state.of(stream, False)",
        STREAMS,
    ),
    called(
        "a captured call has a stream's memory",
        "stale buffer",
        "self._scratch.of(before + self._size, stream, capturing)",
        "self._scratch.of(before + self._size, stream, False)",
        STREAMS,
    ),
    host(
        "a layer's kernels are those of one token",
        "stale buffer",
        "layer_kernels",
        "tokens",
        "1",
        f"{MOE}the_number_of_tokens_chooses_kernels",
    ),
)
ROUTE = "first.values.x, first.values.topk_idx, first.values.counter = (x, topk_idx, counter)"
SUM = "last.values.weights, last.values.y = (topk_weights, y + 2 * column)"


def launched(name: str, kind: str, old: str, new: str, *nearest: str) -> Mutant:
    return host(name, kind, "DeviceExperts.launch", old, new, *nearest)


DECODED = "values.x, values.topk_idx, values.topk_weights, values.y, values.memory = (x, topk_idx, topk_weights, y, memory)"


FEW_ALONE = "tests/runtime/test_calls_in_a_row.py::test_a_call_does_what_it_would_do_alone[moe fp8xfp8, few-fewer tokens]"
ONE_LAUNCH = "tests/runtime/test_launches_of_moe.py::test_a_few_tokens_take_one_launch"


LAUNCHED = (
    host(
        "the one launch has no x",
        "lost data",
        "DeviceDecode.launch",
        DECODED,
        DECODED.replace("values.x, ", "").replace("(x, ", "("),
        ONE_LAUNCH,
    ),
    host(
        "the one launch has another call's arguments", "stale buffer", "DeviceDecode.launch", "arguments.restore(prepared)", "", FEW_ALONE
    ),
    launched(
        "tokens are the first call's",
        "stale buffer",
        ROUTE,
        "first.values.topk_idx, first.values.counter = (topk_idx, counter)",
        fp8("x, another"),
    ),
    launched(
        "experts are the first call's",
        "stale buffer",
        ROUTE,
        "first.values.x, first.values.counter = (x, counter)",
        fp8("topk_idx, another"),
    ),
    launched(
        "routing has no counter",
        "wrong launch",
        ROUTE,
        "first.values.x, first.values.topk_idx = (x, topk_idx)",
        f"{MOE}each_launch_gets_what_the_one_before_leaves",
    ),
    launched("weights are the first call's", "stale buffer", SUM, "last.values.y = y + 2 * column", fp8("topk_weights, another")),
    launched("sums go to the first call's y", "stale buffer", SUM, "last.values.weights = topk_weights", fp8("x, another")),
    launched("routing has another call's arguments", "stale buffer", "first.restore(prepared.route)", "", fp8("fewer tokens")),
    launched("sums have another call's arguments", "stale buffer", "last.restore(total)", "", fp8("one token less")),
    launched(
        "Linear2 has no counter", "wrong launch", "self._fc2.launch(fc2, counter, **groups)", "self._fc2.launch(fc2, 0, **groups)", TURNS
    ),
    launched(
        "Linear2 is Linear1 again",
        "wrong launch",
        "self._fc2.launch(fc2, counter, **groups)",
        "self._fc1.launch(prepared.fc1, counter, **fc1)",
        f"{MOE}each_launch_gets_what_the_one_before_leaves",
    ),
    host(
        "routing may not begin early",
        "wrong launch",
        "DeviceExperts.__init__",
        "CudaKernel(store.get(config), early)",
        "CudaKernel(store.get(config), False)",
        f"{MOE}all_launches_may_begin_early",
    ),
    host(
        "restored arguments stay for what moves",
        "stale buffer",
        "LoadedGemm.launch",
        "arguments.forget()",
        "",
        "tests/runtime/test_launch_arguments.py::test_an_address_that_moved_is_moved_for_one_launch",
    ),
    host(
        "arguments that move are not set",
        "stale buffer",
        "LoadedGemm.launch",
        "setattr(arguments.values, name, address)",
        "pass",
        bf16("x, another"),
    ),
    host("a GEMM has another call's arguments", "stale buffer", "LoadedGemm.launch", "arguments.restore(prepared)", "", fp8("w1, another")),
    host(
        "a GEMM's launch keeps the first counter",
        "stale buffer",
        "LoadedGemm.launch",
        "arguments.values.counter = early.early(counter) if early else counter",
        "",
        STREAMS,
    ),
    host(
        "two threads' GEMMs at once", "missing order", "LoadedGemm.__call__", "LAUNCHES", "torch.no_grad()", f"{THREADS}_for_another_s_gemm"
    ),
    host(
        "two threads' routers at once",
        "missing order",
        "TopExpertsPlan.launch",
        "LAUNCHES",
        "torch.no_grad()",
        f"{THREADS}_for_another_s_router",
    ),
)
