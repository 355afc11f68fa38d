"""Mutants of the layers' calls: fused, and expert-parallel with an activation of the caller."""

from __future__ import annotations

from functools import partial

from host_mutant import LAUNCHES, case, host
from mutant import Mutant

LAYER, EP = partial(case, "MegaMoE"), partial(case, "EpMoE")
EP_TESTS = "tests/runtime/test_ep_layer.py::test_"


def layer(name: str, kind: str, where: str, old: str, new: str, change: str) -> Mutant:
    return host(name, kind, where, old, new, LAYER(change))


def ep(name: str, kind: str, where: str, old: str, new: str, change: str) -> Mutant:
    return host(name, kind, where, old, new, EP(change))


OUT = "check_output('out', out, (len(tensors[0]), self.problem.hidden), self.device)"
EP_OUT = "check_output('out', y, shape, x.device)"
PLACES = "(at, scales, idx, weights) == self._places"
MOVED = "values.x, values.topk_idx, values.topk_weights, values.num_tokens = (at, idx, weights, tokens)"
FUSED = (
    layer("a call keeps the first bound", "stale buffer", "MegaMoE._plan", "None if bound < 0 else bound", "3", "another bound"),
    layer(
        "a layer's plans leave out the bound",
        "stale buffer",
        "MegaMoE.launch",
        "self._plans.of(tensors, (bound,))",
        "self._plans.of(tensors, (-1,))",
        "another bound",
    ),
    layer(
        "a layer's device is looked at once",
        "too narrow",
        "MegaMoE.launch",
        "if self._cuda_index is not None and self._cuda_index != torch._C._cuda_getDevice(): self._check_current_device()",
        "",
        "another device",
    ),
    layer(
        "y of any shape",
        "too narrow",
        "MegaMoE.launch",
        OUT,
        "",
        "out of other rows",
    ),
    layer("y on any device", "too narrow", "MegaMoE.launch", OUT, OUT.replace("self.device", "out.device"), "out, far"),
    layer(
        "inputs on any device",
        "too narrow",
        "InputsStage.check",
        "check_layout(self.problem, '', x, x_sf, topk_idx, topk_weights, self._device)",
        "check_layout(self.problem, '', x, x_sf, topk_idx, topk_weights)",
        "topk_idx, far",
    ),
    layer(
        "the inputs have the first call's tokens",
        "stale buffer",
        "InputsStage.__call__",
        MOVED,
        MOVED.replace("tokens)", "values.num_tokens or tokens)"),
        "one token",
    ),
    layer(
        "the inputs have the first call's x",
        "stale buffer",
        "InputsStage.__call__",
        MOVED,
        MOVED.replace("(at, idx", "(values.x or at, idx"),
        "x, another",
    ),
    layer(
        "the inputs have the first call's scales",
        "stale buffer",
        "InputsStage.__call__",
        "values.x_sf = scales",
        "values.x_sf = values.x_sf or scales",
        "x_sf, another",
    ),
    layer(
        "the inputs have the first call's weights",
        "stale buffer",
        "InputsStage.__call__",
        MOVED,
        MOVED.replace("idx, weights, tok", "idx, values.topk_weights or weights, tok"),
        "topk_weights, another",
    ),
    host(
        "indices of 32 bits are taken for 64",
        "wrong launch",
        "InputsStage.__call__",
        "topk_idx.dtype is not INT64",
        "False",
        f"{LAUNCHES}indices_of_32_bits_are_widened",
    ),
    layer(
        "an x of any place", "too narrow", "InputsStage.__call__", "at % TOKEN_ALIGNMENT or scales % SCALE_ALIGNMENT", "False", "x, shifted"
    ),
    layer(
        "the kernel has the first call's tokens",
        "stale buffer",
        "RankKernel.__call__",
        "values.y, values.num_tokens = (place, tokens)",
        "values.y, values.num_tokens = (place, values.num_tokens or tokens)",
        "one token",
    ),
    layer(
        "a launch goes to the first call's stream",
        "wrong launch",
        "CudaKernel.launch",
        "stream != self._stream",
        "not self._stream and stream",
        "another stream",
    ),
    layer(
        "a launch goes to the default stream",
        "wrong launch",
        "CudaKernel.launch",
        "self._launch.hStream = self._stream = stream",
        "self._stream = stream",
        "another stream",
    ),
)
EXPERT_PARALLEL = (
    ep("tokens of any device", "too narrow", "EpMoE.forward", "check_device('x', x, self.acts.values.device)", "", "x, far"),
    ep(
        "indices of any device",
        "too narrow",
        "EpMoE.forward",
        "inputs.check_layout(self.problem, device=x.device)",
        "inputs.check_layout(self.problem)",
        "topk_idx, far",
    ),
    ep(
        "y of any device",
        "too narrow",
        "EpMoE.forward",
        "check_output('out', y, shape, x.device)",
        "check_output('out', y, shape, y.device)",
        "out, far",
    ),
    ep("tokens of any type are quantized", "too narrow", "EpMoE.forward", "x.dtype != torch.bfloat16", "False", "x, of another dtype"),
    ep(
        "a rank's current device is not looked at",
        "too narrow",
        "EpMoE.forward",
        "if x.is_cuda: check_current(x.device)",
        "",
        "another device",
    ),
    ep(
        "tables of the first call's tokens",
        "stale buffer",
        "EpMoE.route",
        "kernel.arguments.values.num_tokens = inputs.num_tokens",
        "kernel.arguments.values.num_tokens = kernel.arguments.values.num_tokens or inputs.num_tokens",
        "one token",
    ),
    ep(
        "sums of the first call's tokens",
        "stale buffer",
        "EpMoE.point_at",
        "(y if len(y) else self._nowhere).data_ptr(), len(y)",
        "(y if len(y) else self._nowhere).data_ptr(), values.num_tokens or len(y)",
        "one token",
    ),
    ep(
        "sums of ranks go to the first call's y",
        "stale buffer",
        "EpMoE.point_at",
        "(y if len(y) else self._nowhere).data_ptr(), len(y)",
        "values.y if values.num_tokens else y.data_ptr(), len(y)",
        "out, another",
    ),
    host(
        "y of no tokens has no address",
        "wrong base",
        "EpMoE.point_at",
        "y if len(y) else self._nowhere",
        "y",
        f"{LAUNCHES}a_layer_without_tokens_has_an_address_for_y",
    ),
    host(
        "no rows have scales of 128",
        "too narrow",
        "RowActivations.ordered",
        "scale_words(scales)[:, :len(values)]",
        "scale_words(scales)",
        "tests/runtime/test_ep_activations.py::test_no_rows_have_no_scales",
    ),
    host(
        "layers on a buffer may have other kernels",
        "too narrow",
        "EpMoE.check_others",
        "value != wanted",
        "False",
        f"{EP_TESTS}layers_that_share_a_buffer_have_the_same_kernels",
    ),
    host(
        "places of scattered pairs are not looked at",
        "too narrow",
        "EpMoE.forward",
        "not self.capturing",
        "False",
        f"{EP_TESTS}a_call_of_the_layer",
    ),
    host(
        "places of scattered pairs are looked at during a capture",
        "too narrow",
        "EpMoE.forward",
        "not self.capturing",
        "True",
        "tests/runtime/test_calls_in_a_row.py::test_a_capture_does_not_wait_for_the_places_of_pairs",
    ),
    host(
        "other weights have the scales of those before",
        "stale buffer",
        "EpBuffers.weights",
        "self._weights = weights",
        "self._weights = weights if not hasattr(self, 'weight_scales') else self._weights",
        f"{EP_TESTS}other_weights_are_those_that_launches_read",
    ),
    host(
        "y of odd places goes to the launch of a few tokens",
        "missing check",
        "FewTokens.__call__",
        "y.data_ptr() % TMA_ALIGNMENT",
        "False",
        "tests/runtime/test_few_tokens.py::test_what_does_not_lie_as_tma_wants_goes_the_other_way",
    ),
)
LAYERS = (*FUSED, *EXPERT_PARALLEL)
