"""Mutants of the quantize_both family; a test of its own runs each."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

QUANTIZED = tuple(
    f"tests/kernels/test_quantize_both.py::test_codes_and_scales_are_the_references[{name}]" for name in ("False-True", "True-False")
)
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
)
