"""Mutants of the quantize_both family; a test of its own runs each."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

TEST = "tests/kernels/test_quantize_both.py::test_codes_and_scales_are_the_references"
QUANTIZED, IN_MXFP8 = (
    tuple(f"{TEST}[{name}]" for name in names) for names in (("rows", "gathered columns"), ("mxfp8 matrices", "mxfp8 gathered"))
)
in_mxfp8 = partial(Mutant, nearest=IN_MXFP8, archs=())
mutant = partial(Mutant, nearest=QUANTIZED, archs=())

MUTANTS = (
    mutant("the largest of a part stands for all rows", "wrong number", "quantize_channels", "PARTS", "1"),
    mutant("maxima are read before they are there", "missing order", "quantize_channels", "cute.arch.sync_threads()", ""),
    mutant("rows without a source are the last token's", "off by one", "quantize_rows", "source >= 0", "source >= -1"),
    mutant(
        "the second channel's codes lie over the first's",
        "wrong base",
        "quantize_channels",
        "channel + 2 * pair + side",
        "channel + 2 * pair",
    ),
    mutant("scales of a block of rows are the first block's", "wrong base", "quantize_channels", "div(row, SCALE_BLOCK)", "0"),
    in_mxfp8(
        "a row's scale is of all lanes",
        "wrong number",
        "quantize_rows",
        "config.problem.formats.activations",
        'type(config.problem.formats.activations)("e4m3", "ue8m0", 1, SCALE_BLOCK, True)',
    ),
    in_mxfp8("words of all matrices are the first's", "wrong base", "quantize_rows", "matrix * (hidden // SCALE_BLOCK)", "0"),
    in_mxfp8("a row's number is that of all matrices", "wrong base", "matrix_of", "row - matrix * count", "row"),
    in_mxfp8("transposed codes of all matrices are the first's", "wrong base", "quantize_channels", "matrix * config.problem.hidden", "0"),
    in_mxfp8("words of channels lie in their order", "wrong order", "quantize_channels", "utccp_row(2 * pair + side)", "(2 * pair + side)"),
    in_mxfp8(
        "the next block's rows overtake words that are read",
        "missing order",
        "quantize_both_kernel",
        "if cutlass.const_expr(not config.problem.formats.promoted):\n    cute.arch.sync_threads()",
        "",
    ),
)
