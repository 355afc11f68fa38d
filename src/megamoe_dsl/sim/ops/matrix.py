"""ldmatrix and stmatrix (PTX ISA, "Warp-level matrix load/store"): 8x8 b16 tiles, and transposed b8 tiles: 16x16 to load, 16x8 to store.

Lane 8k + i of tile k gives the address of its 16-byte row i (column i for b8). Thread t holds, of every 8x8 tile, the two elements of
row t / 4 that start at column 2 (t % 4). Where the bytes of a 16x16 tile go is what CuTe's copy traits say (SM100_U8x16_LDSM_T).
"""

from __future__ import annotations

import re

import numpy as np

from ..lanes import Lanes
from ..umma import RESULT_TYPES, WHOLE_FORMATS, decode_operand, element_bytes, multiply_accumulate, row_fragment, to_matrix, to_registers
from . import Binder, Handler, Mask, PtxInstruction, SimError, Warp, register, vector
from .access import gather, scatter, state_space

_ROW_BYTES = 16


def _form(ins: PtxInstruction, bytes_shape: str, most: int) -> tuple[int, bool, bool]:
    """Number of tiles, whether they are transposed, and whether they hold bytes: then of `bytes_shape`, at most `most` tiles."""
    tiles, transposed = next((int(part[1:]) for part in ins.parts if re.fullmatch(r"x[124]", part)), 0), "trans" in ins.parts
    if not tiles:
        raise SimError(f"{ins.opcode}: .x1, .x2 or .x4 expected")
    bytes_form = bytes_shape in ins.parts and "b8" in ins.parts and transposed and tiles <= most
    if not bytes_form and ("m8n8" not in ins.parts or "b16" not in ins.parts):
        raise SimError(f"{ins.opcode} is not modeled: m8n8 b16, and trans b8 of m16n16 (load) and m16n8 (store), are")
    return tiles, transposed, bytes_form


def _registers(ins: PtxInstruction, operand: str, tiles: int) -> list[str]:
    names = vector(operand)
    if len(names) != tiles:
        raise SimError(f"{ins.opcode} with {len(names)} registers")
    return names


@register("ldmatrix")
def build_load(ins: PtxInstruction, b: Binder) -> Handler:
    """Load tiles: ldmatrix.sync.aligned.{m8n8.xN[.trans].shared.b16, m16n16.xN.trans.shared.b8} registers, [address]"""
    (tiles, transposed, bytes_form), space = _form(ins, "m16n16", 2), state_space(ins.parts)
    writers = [b.write(name) for name in _registers(ins, ins.operands[0], 2 * tiles if bytes_form else tiles)]
    address = b.address(ins.operands[1])

    def run(w: Warp, mask: Mask) -> None:
        if bytes_form:  # row 4a + 2v + q, column c + 8h: byte 2h + q of register v of thread 4c + a
            rows = gather(w, space, address(w)[: 16 * tiles], 4, 4, None).view(np.uint8)
            values = rows.reshape(tiles, 4, 2, 2, 2, 8).transpose(0, 2, 5, 1, 4, 3)
        else:
            values = gather(w, space, address(w)[: 8 * tiles], 2, 8, None, parts=True).reshape(tiles, 8, 8)
            values = values.transpose(0, 2, 1) if transposed else values
        words = np.ascontiguousarray(values).reshape(len(writers), -1).view(np.uint32)
        for writer, row in zip(writers, words, strict=True):
            writer(w, row, mask)

    return run


@register("stmatrix")
def build_store(ins: PtxInstruction, b: Binder) -> Handler:
    """Store tiles: stmatrix.sync.aligned.{m8n8.xN[.trans].shared.b16, m16n8.xN.trans.shared.b8} [address], registers"""
    (tiles, transposed, bytes_form), space = _form(ins, "m16n8", 4), state_space(ins.parts)
    address = b.address(ins.operands[0])
    readers = [b.read(name, np.uint32) for name in _registers(ins, ins.operands[1], tiles)]

    def run(w: Warp, mask: Mask) -> None:
        words = np.stack([reader(w) for reader in readers])
        if bytes_form:  # byte 2h + q of thread t is row t / 4 + 8h, column 2 (t % 4) + q; memory holds columns of 16 rows
            axes = words.view(np.uint8).reshape(tiles, 8, 4, 2, 2)  # tile, t / 4, t % 4, h, q
            values: Lanes = axes.transpose(0, 2, 4, 3, 1)
        else:
            halves = words.view(np.uint16).reshape(tiles, 8, 8)
            values = halves.transpose(0, 2, 1) if transposed else halves
        flat = np.ascontiguousarray(values).view(np.uint8).reshape(8 * tiles, _ROW_BYTES)
        scatter(w, space, address(w)[: 8 * tiles], 4, 4, flat.view(np.uint32), None, parts=True)

    return run


@register("mma")
def build_mma(ins: PtxInstruction, b: Binder) -> Handler:
    """mma.sync.aligned.m16n8kK.row.col[.satfinite].D.A.B.C {d}, {a}, {b}, {c}"""
    shape = next((m for part in ins.parts if (m := re.fullmatch(r"m16n8k(\d+)", part))), None)
    d_name, a_name, b_name, c_name = ins.parts[-4:]
    known = shape is not None and {a_name, b_name} <= set(WHOLE_FORMATS) and {d_name, c_name} <= set(RESULT_TYPES)
    k_bytes = int(shape.group(1)) * element_bytes(a_name) if shape else 0
    if not known or k_bytes not in (16, 32) or "sp" in ins.parts or any(part.startswith("kind::") for part in ins.parts):
        raise SimError(f"{ins.opcode} is not modeled: dense m16n8 with 16 or 32 bytes of K of {', '.join(WHOLE_FORMATS)} is")
    destinations, *sources = [vector(text) for text in ins.operands]
    sizes = [len(names) for names in (destinations, *sources)]
    counts = [4 if name != "f16" else 2 for name in (d_name, c_name)]
    if sizes != [counts[0], k_bytes // 8, k_bytes // 16, counts[1]]:
        raise SimError(f"{ins.opcode} with {', '.join(map(str, sizes))} registers")
    writers = [b.write(name) for name in destinations]
    a_registers, b_registers, c_registers = [[b.read(name, np.uint32) for name in names] for names in sources]
    dtype, c_dtype, saturate = RESULT_TYPES[d_name], RESULT_TYPES[c_name], "satfinite" in ins.parts

    def run(w: Warp, mask: Mask) -> None:
        rows = decode_operand(row_fragment([read(w) for read in a_registers], 2), a_name)
        columns = decode_operand(row_fragment([read(w) for read in b_registers], 1), b_name)
        previous = to_matrix([read(w) for read in c_registers], c_dtype)
        result = to_registers(multiply_accumulate(rows, columns, previous, dtype, saturate))
        for write, row in zip(writers, result, strict=True):
            write(w, row, mask)

    return run
