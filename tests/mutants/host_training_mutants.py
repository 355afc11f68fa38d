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
        "_fp8_products",
        "numbers_of(positions, padded.places)",
        "positions",
        f"{FP8}gradients_are_near_float64",
    ),
    host(
        "columns of x are in the order of tokens",
        "wrong base",
        "_fp8_products",
        "numbers_of(padded.sources, sources)",
        "padded.sources",
        f"{FP8}gradients_are_near_float64",
    ),
    host(
        "W2 of FP8 is not transposed",
        "wrong number",
        "transposed",
        "in_e4m3(w, made, True)",
        "in_e4m3(w, made)",
        f"{FP8}gradients_are_near_float64",
    ),
    host(
        "gate and up are computed again without scales",
        "wrong number",
        "_backward",
        "route(x, idx, len(w1), True)[3:]",
        "scaled_dy",
        f"{FP8}kernels_have_the_references_bits",
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
