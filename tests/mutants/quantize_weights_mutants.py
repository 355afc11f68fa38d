"""Mutants of the quantize_weights family; a test of its own runs each."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

AS_THEY_LIE, TRANSPOSED = (
    f"tests/kernels/test_quantize_weights.py::test_codes_and_scales_are_the_references[{name}]" for name in (False, True)
)
mutant = partial(Mutant, nearest=(AS_THEY_LIE, TRANSPOSED), archs=())

MUTANTS = (
    mutant("the largest of a warp stands for a block", "wrong number", "block_scale", "config.num_threads // 32", "1"),
    mutant("maxima of a block are read before they are there", "missing order", "block_scale", "cute.arch.sync_threads()", ""),
    mutant(
        "the second column's codes lie over the first's",
        "wrong base",
        "store_columns",
        "Int64(matrix) * config.problem.k + column + 2 * pair + side",
        "Int64(matrix) * config.problem.k + column + 2 * pair",
    ),
    mutant("transposed codes of all matrices are one matrix", "wrong base", "store_columns", "div(row, n)", "0"),
    mutant(
        "the next block overtakes one that is read",
        "missing order",
        "quantize_weights_kernel",
        "if thread == 0:\n    store_f32(args.scales + Int64(number) * 4, scale)\ncute.arch.sync_threads()",
        "if thread == 0:\n    store_f32(args.scales + Int64(number) * 4, scale)",
    ),
)
