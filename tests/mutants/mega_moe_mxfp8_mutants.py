"""Mutants of what 8-bit weights have for themselves on SM100 (mxfp8xmxfp8): their code, maps that unpack nothing, a byte a value."""

from __future__ import annotations

from mutant import Mutant

RUN = ("tests/kernels/test_mxfp8.py::test_every_tile[64]",)


def mutant(name: str, kind: str, file: str, old: str, new: str) -> Mutant:
    """One that only tests of the recipe run into."""
    return Mutant(name, kind, file, old, new, RUN, ())


MXFP8_MUTANTS = (
    mutant(
        "E4M3 weights are described as E2M1",
        "wrong number",
        "hardware/pair_mma.py",
        '("e4m3", "e4m3"): ScaledMma("mxf8f6f4", 0, 0, 32)',
        '("e4m3", "e4m3"): ScaledMma("mxf8f6f4", 5, 0, 32)',
    ),
    mutant(
        "E4M3 weights are described as E5M2",
        "wrong number",
        "hardware/pair_mma.py",
        '("e4m3", "e4m3"): ScaledMma("mxf8f6f4", 0, 0, 32)',
        '("e4m3", "e4m3"): ScaledMma("mxf8f6f4", 1, 0, 32)',
    ),
    mutant(
        "weights of a byte are unpacked",
        "wrong number",
        "blocks/sm100/pair_config.py",
        "return ALL_BYTES if",
        "return BYTE_VALUES if",
    ),
    mutant(
        "half of the bytes of 8-bit weights are waited for",
        "wrong number",
        "blocks/sm100/pair_stage.py",
        "BLOCK_N * self.k_block.weight_row_bytes + ",
        "BLOCK_N * self.k_block.channels // 2 + ",
    ),
    mutant(
        "rows of 8-bit weights have the pitch of 4-bit ones",
        "wrong base",
        "blocks/sm100/operand_maps.py",
        "row_bytes = k * k_block.weight_bits // 8",
        "row_bytes = k // 2",
    ),
)
