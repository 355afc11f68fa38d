"""Faults for the GEMMs of a backward pass on SM100 (pair_gemm_faults.py has what any GEMM of pairs can have)."""

from __future__ import annotations

from kernel_faults import gone, swap
from pair_gather_faults import COPIED_SCALES, GATHER, ROWS
from pair_gemm_faults import ANY, LOAD, OPERANDS, PLAIN_PAIR_FAULTS, SCALED
from sm90_faults import EPILOGUE_GROUP, EXPECT, NOT_ORDERED, STUCK, WAIT, Sm90Fault, at, before, fewer_bytes, never

STAGED = r"st\.shared\.f32[^;]*;"
TO_ROWS = r"st\.global\.v4\.b32[^;]*;"

PAIR_SUM_FAULTS: tuple[Sm90Fault, ...] = (
    before("empty not waited for where a last stage is gathered", GATHER, 0, WAIT, never, ANY),
    before("gathered bytes too few", GATHER, -1, EXPECT, fewer_bytes, ANY),
    at("four rows of a last stage not gathered", GATHER, 0, gone, STUCK),
    at("four listed rows not gathered", GATHER, -1, gone, STUCK),
    at("64 columns of whole stages not loaded", LOAD, 0, gone, STUCK),
)
"""Of rows of K, by boxes and by gather4."""
STAGED_SUMS: tuple[Sm90Fault, ...] = (
    at("sums staged while others read them", EPILOGUE_GROUP, 0, gone, NOT_ORDERED),
    at("sums read before they are staged", EPILOGUE_GROUP, 1, gone, NOT_ORDERED),
    at("a sum not staged", STAGED, 0, gone, NOT_ORDERED),
    at("gradients of gate not stored", TO_ROWS, 0, gone, NOT_ORDERED),
    at("gradients of the second rows' up not stored", TO_ROWS, -2, gone, NOT_ORDERED),
    at("weighted products not stored", TO_ROWS, -1, gone, NOT_ORDERED),
    at("a lane's part of a weight's gradient not added", r"shfl\.sync\.bfly[^;]*;", -1, swap("bfly", "idx"), NOT_ORDERED),
)
"""On their way to lanes that have channels of a row."""
PAIR_GRADIENT_FAULTS: tuple[Sm90Fault, ...] = (*PLAIN_PAIR_FAULTS[1:2], *PLAIN_PAIR_FAULTS[5:], *ROWS[1:4], *STAGED_SUMS)
MXFP8_GRADIENT_FAULTS: tuple[Sm90Fault, ...] = (
    *OPERANDS[1:2],
    *OPERANDS[5:],
    *SCALED[1:],
    *ROWS[1:4],
    *COPIED_SCALES,
    *STAGED_SUMS,
)
"""With scales of gathered rows."""
