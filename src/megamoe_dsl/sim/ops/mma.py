"""mma.sync: the dense matrix multiply of one warp, m16n8 (PTX ISA, mma.sync).

The fragments are those of wgmma's registers: A has 16 rows of 16 or 32 bytes of K, B 8 columns of as many, C and D are 16 x 8. Products
are summed in float64 and rounded once.
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
from ..umma import Bytes, decode_operand, element_bytes, multiply_accumulate
from ..wgmma_fragment import RESULT_TYPES, to_matrix, to_registers
from . import Handler, register

_FORMATS = ("f16", "bf16", "tf32", "s8", "u8", "e4m3", "e5m2")


def _rows(registers: list[Lanes], groups: int) -> Bytes:
    """Register h + `groups` * g of thread t holds bytes 16g + 4 (t % 4) of row t / 4 + 8h; returns (8 * groups, bytes of K)."""
    words = np.stack(registers).reshape(-1, groups, 8, 4)  # g, h, t / 4, t % 4
    return np.ascontiguousarray(words.transpose(1, 2, 0, 3)).view(np.uint8).reshape(8 * groups, -1)


@register("mma")
def build_mma(ins: PtxInstruction, b: Binder) -> Handler:
    """mma.sync.aligned.m16n8kK.row.col[.satfinite].D.A.B.C {d}, {a}, {b}, {c}"""
    shape = next((m for part in ins.parts if (m := re.fullmatch(r"m16n8k(\d+)", part))), None)
    d_name, a_name, b_name, c_name = ins.parts[-4:]
    known = shape is not None and {a_name, b_name} <= set(_FORMATS) and {d_name, c_name} <= set(RESULT_TYPES)
    k_bytes = int(shape.group(1)) * element_bytes(a_name) if shape else 0
    if not known or k_bytes not in (16, 32) or "sp" in ins.parts or any(part.startswith("kind::") for part in ins.parts):
        raise SimError(f"{ins.opcode} is not modelled: dense m16n8 with 16 or 32 bytes of K of {', '.join(_FORMATS)} is")
    destinations, *sources = [vector(text) for text in ins.operands]
    sizes = [len(names) for names in (destinations, *sources)]
    counts = [4 if name != "f16" else 2 for name in (d_name, c_name)]
    if sizes != [counts[0], k_bytes // 8, k_bytes // 16, counts[1]]:
        raise SimError(f"{ins.opcode} with {', '.join(map(str, sizes))} registers")
    writers = [b.write(name) for name in destinations]
    a_registers, b_registers, c_registers = [[b.read(name, np.uint32) for name in names] for names in sources]
    dtype, c_dtype, saturate = RESULT_TYPES[d_name], RESULT_TYPES[c_name], "satfinite" in ins.parts

    def run(w: WarpLike, mask: Mask) -> Outcome | None:
        if not w.converged(mask):
            return w.block("convergence")
        rows = decode_operand(_rows([read(w) for read in a_registers], 2), a_name)
        columns = decode_operand(_rows([read(w) for read in b_registers], 1), b_name)
        previous = to_matrix([read(w) for read in c_registers], c_dtype)
        result = to_registers(multiply_accumulate(rows, columns, previous, dtype, saturate))
        for write, row in zip(writers, result, strict=True):
            write(w, row, mask)
        return None

    return run
