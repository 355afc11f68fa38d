"""ldmatrix and stmatrix (PTX ISA, "Warp-level matrix load/store"): 8x8 b16 tiles, and transposed b8 tiles: 16x16 to load, 16x8 to store.

Lane 8k + i of tile k gives the address of its 16-byte row i (column i for b8). Thread t holds, of every 8x8 tile, the two elements of
row t / 4 that start at column 2 (t % 4). Where the bytes of a 16x16 tile go is what CuTe's copy traits say (SM100_U8x16_LDSM_T).
"""

from __future__ import annotations

import re

import numpy as np

from ..errors import SimError
from ..interfaces import WarpLike
from ..lanes import Lanes, Mask
from ..operands import Binder, vector
from ..outcome import Outcome
from ..parser import PtxInstruction
from . import Handler, register
from .access import gather, scatter
from .common import state_space

_ROW_BYTES = 16


def _tiles(ins: PtxInstruction) -> int:
    count = next((int(part[1:]) for part in ins.parts if re.fullmatch(r"x[124]", part)), 0)
    if not count:
        raise SimError(f"{ins.opcode}: .x1, .x2 or .x4 expected")
    return count


def _registers(ins: PtxInstruction, operand: str, tiles: int) -> list[str]:
    names = vector(operand)
    if len(names) != tiles:
        raise SimError(f"{ins.opcode} with {len(names)} registers")
    return names


def _unsupported(ins: PtxInstruction) -> SimError:
    return SimError(f"{ins.opcode} is not modelled: m8n8 b16, and trans b8 of m16n16 (load) and m16n8 (store), are")


@register("ldmatrix")
def build_load(ins: PtxInstruction, b: Binder) -> Handler:
    """ldmatrix.sync.aligned.{m8n8.xN[.trans].shared.b16, m16n16.xN.trans.shared.b8} registers, [address]"""
    tiles, transposed, space = _tiles(ins), "trans" in ins.parts, state_space(ins.parts)
    bytes_form = "m16n16" in ins.parts and "b8" in ins.parts and transposed and tiles < 4
    if not bytes_form and ("m8n8" not in ins.parts or "b16" not in ins.parts):
        raise _unsupported(ins)
    writers = [b.write(name) for name in _registers(ins, ins.operands[0], 2 * tiles if bytes_form else tiles)]
    address = b.address(ins.operands[1])

    def run(w: WarpLike, mask: Mask) -> Outcome | None:
        if not w.converged(mask):
            return w.block("convergence")
        if bytes_form:  # row 4a + 2v + q, column c + 8h: byte 2h + q of register v of thread 4c + a
            rows = gather(w, space, address(w)[: 16 * tiles], 4, 4, None).view(np.uint8)
            values = rows.reshape(tiles, 4, 2, 2, 2, 8).transpose(0, 2, 5, 1, 4, 3)
        else:
            values = gather(w, space, address(w)[: 8 * tiles], 2, 8, None, parts=True).reshape(tiles, 8, 8)
            values = values.transpose(0, 2, 1) if transposed else values
        words = np.ascontiguousarray(values).reshape(len(writers), -1).view(np.uint32)
        for writer, row in zip(writers, words, strict=True):
            writer(w, row, mask)
        return None

    return run


@register("stmatrix")
def build_store(ins: PtxInstruction, b: Binder) -> Handler:
    """stmatrix.sync.aligned.{m8n8.xN[.trans].shared.b16, m16n8.xN.trans.shared.b8} [address], registers"""
    tiles, transposed, space = _tiles(ins), "trans" in ins.parts, state_space(ins.parts)
    bytes_form = "m16n8" in ins.parts and "b8" in ins.parts and transposed
    if not bytes_form and ("m8n8" not in ins.parts or "b16" not in ins.parts):
        raise _unsupported(ins)
    address = b.address(ins.operands[0])
    readers = [b.read(name, np.uint32) for name in _registers(ins, ins.operands[1], tiles)]

    def run(w: WarpLike, mask: Mask) -> Outcome | None:
        if not w.converged(mask):
            return w.block("convergence")
        words = np.stack([reader(w) for reader in readers])
        if bytes_form:  # byte 2h + q of thread t is row t / 4 + 8h, column 2 (t % 4) + q; memory holds columns of 16 rows
            axes = words.view(np.uint8).reshape(tiles, 8, 4, 2, 2)  # tile, t / 4, t % 4, h, q
            values: Lanes = axes.transpose(0, 2, 4, 3, 1)
        else:
            halves = words.view(np.uint16).reshape(tiles, 8, 8)
            values = halves.transpose(0, 2, 1) if transposed else halves
        flat = np.ascontiguousarray(values).view(np.uint8).reshape(8 * tiles, _ROW_BYTES)
        scatter(w, space, address(w)[: 8 * tiles], 4, 4, flat.view(np.uint32), None, parts=True)
        return None

    return run
