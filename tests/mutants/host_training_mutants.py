"""Mutants of the host's part of gradients: on one GPU, in FP8, and across ranks."""

from __future__ import annotations

from host_mutant import host

FP8 = "tests/runtime/test_fp8_training.py::test_"
EP = "tests/kernels/test_ep_training.py::test_"
TRAINING = (
    host(
        "rows behind the last group's are the last group's",
        "missing check",
        "padded_rows",
        "numbers < ends[-1]",
        "numbers >= 0",
        f"{FP8}rows_are_padded",
    ),
    host(
        "padding is as if every group began at its rows' number",
        "wrong base",
        "padded_rows",
        "padded - filled - starts",
        "padded - filled",
        f"{FP8}rows_are_padded",
    ),
    host("room for no padding", "off by one", "most_padded", "min(groups, rows)", "0", f"{FP8}rows_are_padded"),
    host(
        "tokens of FP8 rows are those of packed rows",
        "stale buffer",
        "_padded_products",
        "numbers_of(positions, padded.places)",
        "positions",
        f"{FP8}gradients_are_near_float64",
    ),
    host(
        "columns of x are in the order of tokens",
        "wrong base",
        "_padded_products",
        "numbers_of(padded.sources, sources)",
        "padded.sources",
        f"{FP8}gradients_are_near_float64",
    ),
    host(
        "W2 of FP8 is not transposed",
        "wrong number",
        "matrices",
        "quantize_weights(w, transposed, recipe)",
        "quantize_weights(w, False, recipe)",
        f"{FP8}gradients_are_near_float64",
    ),
    host(
        "gate and up are computed again without scales",
        "wrong number",
        "_backward",
        "routed(x, idx, len(w1), recipe)[3:]",
        "rows",
        f"{FP8}weights_are_quantized_before[True-fp8xfp8]",
    ),
    host(
        "W1 has its scales in the order of rows in MXFP8",
        "wrong order",
        "forward_weights",
        "gate_up_words(scale_bytes(w1_sf), gate_up)",
        "w1_sf",
        f"{FP8}the_result_is_that_of_quantized_weights[interleaved-mxfp8xmxfp8]",
    ),
    host(
        "quantized weights of another recipe are taken",
        "missing check",
        "QuantizedExperts.check",
        "self.recipe != recipe",
        "False",
        f"{FP8}other_weights_and_later_ones_are_refused",
    ),
    host(
        "transposed weights have the scales of rows in MXFP8",
        "wrong number",
        "device_gradients:quantize_weights",
        "loaded_kernel(w.device, QuantizeProblem, k, False, not transposed, recipe, n, transposed)",
        "loaded_kernel(w.device, QuantizeProblem, k, False, not transposed, recipe, 0, transposed)",
        "tests/kernels/test_simulated_training.py::test_kernels_have_the_references_bits[sm_100a-mxfp8xmxfp8-gate_first]",
    ),
    host(
        "an expert-parallel gradient of weights forgets top-k weights",
        "wrong number",
        "Combined.backward",
        "a.float() * w[:, None]",
        "a.float()",
        f"{EP}exact_data_gives_the_gradients_of_float64[2]",
    ),
    host(
        "masked slots keep what their places had",
        "stale buffer",
        "Dispatched.backward",
        "one.masked_fill_(routed.tables.pair_rows < 0, 0.0)",
        "pass",
        f"{EP}exact_data_gives_the_gradients_of_float64[2]",
    ),
    host(
        "sources of a rank's rows are another column's",
        "wrong base",
        "Routed.of",
        "offsets[ranks, rows] // (width * 2)",
        "offsets[ranks, rows] // width",
        f"{EP}exact_data_gives_the_gradients_of_float64[2]",
    ),
    host(
        "dY is dispatched with the forward pass's top-k weights",
        "wrong number",
        "Combined.backward",
        "torch.ones(routed.topk_idx.shape, device=dy.device)",
        "torch.full(routed.topk_idx.shape, 0.5, device=dy.device)",
        f"{EP}exact_data_gives_the_gradients_of_float64[2]",
    ),
    host(
        "as many rows are padded as there are groups",
        "wrong number",
        "most_padded",
        "min(groups, rows)",
        "groups",
        "tests/runtime/test_fp8_training.py::test_rows_are_padded",
    ),
)
