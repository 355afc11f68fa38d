"""Mutants of what 8-bit weights have for themselves on SM100 (mxfp8xmxfp8): their code, maps that unpack nothing, a byte a value."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

RUN = ("tests/kernels/test_mxfp8.py::test_every_tile[64]",)
mutant = partial(Mutant, nearest=RUN, archs=())

MXFP8_MUTANTS = (
    mutant(
        "E4M3 weights are described as E2M1",
        "wrong number",
        "PAIR_MMAS",
        'ScaledMma("mxf8f6f4", 0, 0, 32)',
        'ScaledMma("mxf8f6f4", 5, 0, 32)',
    ),
    mutant(
        "E4M3 weights are described as E5M2",
        "wrong number",
        "PAIR_MMAS",
        'ScaledMma("mxf8f6f4", 0, 0, 32)',
        'ScaledMma("mxf8f6f4", 1, 0, 32)',
    ),
    mutant(
        "weights of a byte are unpacked",
        "wrong number",
        "k_block_of",
        "ALL_BYTES if formats.weights.element_bits == ALL_BYTES.weight_bits else BYTE_VALUES",
        "BYTE_VALUES if formats.weights.element_bits == ALL_BYTES.weight_bits else BYTE_VALUES",
    ),
    mutant(
        "half of the bytes of 8-bit weights are waited for",
        "wrong number",
        "PairStage.weight_transaction",
        "BLOCK_N * self.k_block.weight_row_bytes",
        "BLOCK_N * self.k_block.channels // 2",
    ),
    mutant(
        "rows of 8-bit weights have the pitch of 4-bit ones",
        "wrong base",
        "weight_tiles",
        "k_block.weight_row_bytes // k_block.weight_tiles",
        "k_block.channels // 2",
    ),
)
