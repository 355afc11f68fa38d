"""tcgen05.mma and tcgen05.cp: operations of the asynchronous tensor pipe.

Source: PTX ISA, "tcgen05.mma", "tcgen05.cp", "Data path layout organization" (which lanes and columns hold the accumulator).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from .. import umma
from ..chunks import CHUNK, Chunks, IndexArray
from ..clock import Actor
from ..descriptors import BLOCK_SCALED_KINDS, K_BYTES, InstructionDescriptor, SmemDescriptor, operand_bytes
from ..formats import Float64Array
from ..memory import Bytes
from ..tensor_unit import COLUMNS, QUARTERS, PipeIssue, TensorUnit, cta_group, granules, tensor_unit
from ..tma_engine import read_shared_chunks
from . import ADDRESS, Binder, Cta, Kinds, PtxInstruction, SimError, Warp, each_lane
from .access import origin

_ALL_QUARTERS = tuple(range(QUARTERS))
_PADDING = 0xEEEE0000
_ACCUMULATOR = "tcgen05.mma accumulator"
_LONG_BLOCKS = (3, 6)  # scale factors of a row of 96 elements


@dataclass(slots=True)
class _Mma:
    """Operands of one tcgen05.mma, read at issue."""

    parts: tuple[str, ...]  # of the instruction
    kind: str
    fields: InstructionDescriptor
    ctas: list[Cta]
    accumulator: int
    a: SmemDescriptor | int
    b: SmemDescriptor
    scales: tuple[int, ...]  # addresses of the scales of A and B
    accumulate: bool
    shift: int


def _mma_operands(ins: PtxInstruction, b: Binder) -> Kinds:
    for unsupported in ("sp", "ws"):
        if unsupported in ins.parts:
            raise SimError(f"tcgen05.mma.{unsupported} is not modeled")
    a, brackets = ins.operands[1], [text for text in ins.operands[4:] if text[0] in "[{"]
    more: list[type | list[type] | None] = [ADDRESS if text.startswith("[") else [np.uint32] for text in brackets]
    return ADDRESS, ADDRESS if a.startswith("[") else np.uint64, np.uint64, np.uint32, *more, np.bool_, np.uint32


@each_lane("tcgen05.mma", reads=_mma_operands)
def multiply(ins: PtxInstruction, w: Warp, lane: int, target: int, a: int, b: int, idesc: int, *rest: Any) -> None:
    """[d], a-desc or [a], b-desc, idesc, ([scale A], [scale B] | [{disable lanes}]) enable-input-d [, scale-input-d]"""
    ctas, kind = cta_group(w, ins.parts), next(part for part in ins.parts if part.startswith("kind::")).removeprefix("kind::")
    if ctas[0] is not w.cta:
        raise SimError("tcgen05.mma with cta_group::2 issued by the odd CTA of the pair")
    count = sum(text[0] in "[{" for text in ins.operands[4:])
    extra, (enable, *shift) = rest[:count], rest[count:]
    if kind not in BLOCK_SCALED_KINDS and any(map(any, extra)):
        raise SimError("tcgen05.mma with disabled output lanes is not modeled")
    fields = InstructionDescriptor.decode(idesc, kind)
    fields.check_shape(len(ctas))
    of_a = a if ins.operands[1].startswith("[") else SmemDescriptor.decode_sm100(a)
    mma = _Mma(ins.parts, kind, fields, ctas, target, of_a, SmemDescriptor.decode_sm100(b), extra, enable, sum(shift))
    unit, issue = tensor_unit(w.cta), PipeIssue(w)
    unit.work(partial(_multiply, unit, mma, issue), origin(w))


@lru_cache(maxsize=4096)
def operand_chunks(descriptor: SmemDescriptor, rows: int, k_bytes: int, size: int, mn_major: bool) -> tuple[Chunks, IndexArray | None]:
    """Chunks an operand touches, and where in them its bytes are (flat index into the chunks read); None when in this order."""
    index = operand_bytes(descriptor, rows, k_bytes, size, mn_major)
    if not mn_major:
        return Chunks(index[:, ::CHUNK].reshape(-1)), None
    starts, inverse = np.unique(index // CHUNK, return_inverse=True)
    return Chunks(starts * CHUNK), inverse.reshape(index.shape) * CHUNK + index % CHUNK


@lru_cache(maxsize=4096)
def _both_chunks(a: SmemDescriptor, b: SmemDescriptor, rows: int, columns: int, fields: InstructionDescriptor) -> Chunks:
    k_bytes = fields.k_bytes
    of_a = operand_chunks(a, rows, k_bytes, umma.element_bytes(fields.a_format), fields.a_mn_major)[0]
    of_b = operand_chunks(b, columns, k_bytes, umma.element_bytes(fields.b_format), fields.b_mn_major)[0]
    return Chunks(np.concatenate([of_a.starts, of_b.starts]))


def fetch_operand(
    cta: Cta, descriptor: SmemDescriptor, rows: int, name: str, mn_major: bool, actor: Actor | None, k_bytes: int = K_BYTES
) -> Float64Array:
    """Values (rows, k) of one K slice of an operand in shared memory."""
    chunks, inside = operand_chunks(descriptor, rows, k_bytes, umma.element_bytes(name), mn_major)
    raw = read_shared_chunks(cta, chunks, "MMA operand", actor)
    return umma.decode_operand(raw.reshape(rows, k_bytes) if inside is None else raw.reshape(-1)[inside], name)


def _multiply(unit: TensorUnit, mma: _Mma, issue: PipeIssue) -> None:
    fields, ctas = mma.fields, mma.ctas
    shared, tensor_actor = unit.begin(issue)
    shared_actor: Actor | None = shared
    rows, columns = fields.m // len(ctas), fields.n // len(ctas)
    k_bytes = fields.k_bytes
    if shared and isinstance(mma.a, SmemDescriptor):
        a_and_b = _both_chunks(mma.a, mma.b, rows, columns, fields)
        if all(cta.world.race.read_shared_if_known(cta, a_and_b, shared) for cta in ctas):
            shared_actor = None  # who has read it all
    b = np.concatenate([fetch_operand(cta, mma.b, columns, fields.b_format, fields.b_mn_major, shared_actor, k_bytes) for cta in ctas])
    if fields.b_negate:
        b = -b
    for cta in ctas:
        if isinstance(mma.a, SmemDescriptor):
            a = fetch_operand(cta, mma.a, rows, fields.a_format, fields.a_mn_major, shared_actor, k_bytes)
        else:
            if rows != 128:
                raise SimError(f"tcgen05.mma with A in TMEM and {rows} rows per CTA is not modeled, 128 are")
            words = _read_tensor(cta, mma.a & 0xFFFF, k_bytes // 4, slice(0, 128), "MMA operand A", tensor_actor)
            raw = np.ascontiguousarray(words).view(np.uint8)  # row m in lane m, K packed along 8 columns (12 of K = 96)
            a = umma.decode_tensor_operand(raw, fields.a_format)
        if fields.a_negate:
            a = -a
        scaled_b = b
        if fields.scale_format:
            blocks = umma.scale_blocks(mma.kind, mma.parts, k_bytes)
            folded = len(ctas) == 2 and fields.m == 128
            a = umma.scale_rows(a, _scales(cta, mma.scales[0], fields.a_scale_id, rows, blocks, fields.scale_format, False, tensor_actor))
            scales = _scales(cta, mma.scales[1], fields.b_scale_id, fields.n, blocks, fields.scale_format, folded, tensor_actor)
            scaled_b = umma.scale_rows(b, scales)
        _accumulate(cta, mma, a, scaled_b, tensor_actor)


def _read_tensor(cta: Cta, column: int, count: int, lanes: slice, what: str, actor: Actor) -> np.ndarray:
    unit = tensor_unit(cta)
    if (words := unit.read(lanes, column, count, what)) is None:
        raise SimError(f"{what} reads uninitialized TMEM: {cta} columns [{column}, {column + count})")
    if actor:
        quarters = tuple(range(lanes.start // 32, (lanes.stop + 31) // 32))
        cta.world.race.read(unit.shadow, granules(quarters, column, count), actor)
    return words


def _scales(cta: Cta, address: int, first_byte: int, rows: int, blocks: int, name: str, folded: bool, actor: Actor) -> Float64Array:
    """Scale factors (rows, blocks): row r in lane r % 32, column r // 32, bytes from `first_byte` on; those of K = 96 go on in later
    columns. `folded` (M = 128 over a pair): the second half of the rows is in lanes 64 and up, at the same columns."""
    sets = -(-(first_byte + blocks) // 4)
    if sets > 1 and blocks not in _LONG_BLOCKS:
        raise SimError(f"scale factors from byte {first_byte} of a column, {blocks} per row: they must lie in one column of 4 bytes")
    half = rows // 2 if folded else rows
    column, width = address & 0xFFFF, -(-half // 32)  # CuTe keeps the id of the scale factors in the top two bits
    _read_tensor(cta, column, sets * width, slice(0, 128), "MMA scale factors", actor)
    memory = tensor_unit(cta).words.view(np.uint8)
    return umma.SCALE_TABLES[name].take(memory.take(_scale_places(column, rows, half, first_byte, blocks)))


@lru_cache(maxsize=4096)
def _scale_places(column: int, rows: int, half: int, first_byte: int, blocks: int) -> IndexArray:
    row = np.arange(rows)
    lane, word = row % 32 + 64 * (row // half), column + row % half // 32
    later, byte = np.divmod(np.arange(first_byte, first_byte + blocks), 4)
    return 4 * ((lane * COLUMNS + word)[:, None] + later * -(-half // 32)) + byte


def _blocks(m: int, n: int, ctas: int) -> list[tuple[slice, slice, int]]:
    """How the (rows, n) result of one CTA lies in TMEM: lanes, columns of the result, first TMEM column, one entry per lane block."""
    if m // ctas == 128:
        return [(slice(0, 128), slice(0, n), 0)]
    if ctas == 2:  # M = 128 over a pair: the halves of N one below the other
        return [(slice(0, 64), slice(0, n // 2), 0), (slice(64, 128), slice(n // 2, n), 0)]
    return [(slice(32 * q, 32 * q + 16), slice(0, n), 0) for q in range(QUARTERS)]  # M = 64: 16 rows per lane quarter


def _accumulate(cta: Cta, mma: _Mma, a: Float64Array, b: Float64Array, actor: Actor) -> None:
    unit, n = tensor_unit(cta), mma.fields.n
    column, lane_base = mma.accumulator & 0xFFFF, mma.accumulator >> 16 & 0x7F
    blocks = _blocks(mma.fields.m, n, len(mma.ctas))
    width = blocks[0][1].stop - blocks[0][1].start
    if lane_base and (len(blocks) != QUARTERS or lane_base != 16):
        raise SimError(f"tcgen05.mma accumulator at TMEM lane {lane_base}")
    where = [slice(lanes.start + lane_base, lanes.stop + lane_base) for lanes, _, _ in blocks]
    accumulator, dtype = None, umma.RESULT_TYPES[mma.fields.accumulator]
    by_rows, halves = len(blocks) == QUARTERS, np.dtype(dtype).itemsize == 2
    if mma.accumulate:
        parts: list[umma.Matrix] = []
        for lanes in where:
            if (words := unit.read(lanes, column, width, _ACCUMULATOR)) is None:
                raise SimError(f"tcgen05.mma accumulates into uninitialized TMEM: {cta} columns [{column}, {column + width})")
            parts.append(words.astype(np.uint16).view(dtype) if halves else words.view(dtype))  # of 16 bits the low half of a column
        accumulator = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=0 if by_rows else 1)
        if mma.shift:
            accumulator = accumulator * dtype(2.0**-mma.shift)
    values = umma.multiply_accumulate(a, b, accumulator, dtype, mma.fields.saturate)
    result = values.view(np.uint16) | np.uint32(_PADDING) if halves else values.view(np.uint32)
    for k, lanes in enumerate(where):
        unit.write(lanes, column, result[16 * k : 16 * k + 16] if by_rows else result[:, blocks[k][1]], _ACCUMULATOR)
    cta.world.race.write(unit.shadow, granules(_ALL_QUARTERS, column, width), actor)


_COPY_SHAPES = {"32x128b": (32, 16), "64x128b": (64, 16), "128x128b": (128, 16), "128x256b": (128, 32)}
_COPY_SOURCES = ("b4x16_p64", "b6x16_p32")  # narrow floats that become bytes on the way
# Which rows of 32 each lane quarter receives.
_COPY_QUARTERS = {"warpx4": (0, 0, 0, 0), "warpx2::01_23": (0, 0, 1, 1), "warpx2::02_13": (0, 1, 0, 1), "": (0, 1, 2, 3)}


@each_lane("tcgen05.cp", reads=(ADDRESS, np.uint64))
def copy(ins: PtxInstruction, w: Warp, lane: int, target: int, fields: int) -> None:
    """Copy shared to tensor memory: tcgen05.cp.cta_group.SHAPE[.multicast][.b8x16.SOURCE] [address], descriptor.  In shared memory groups
    of 8 rows lie SBO apart, rows one span apart; without a swizzle a row is 16 bytes, and further 16-byte chunks of it lie LBO apart."""
    rows, row_bytes = _COPY_SHAPES.get(ins.parts[3], (0, 0))
    quarters = _COPY_QUARTERS[next((part for part in ins.parts if part.startswith("warpx")), "")]
    source = next((part for part in ins.parts if part in _COPY_SOURCES), "")
    if not rows or len(set(quarters)) * 32 != rows:
        raise SimError(f"{ins.opcode}: this shape is not modeled")
    if target >> 16:
        raise SimError(f"tcgen05.cp to TMEM address {target:#x}: the lane must be 0")
    ctas, unit, issue = cta_group(w, ins.parts), tensor_unit(w.cta), PipeIssue(w)
    chunks = operand_chunks(SmemDescriptor.decode_sm100(fields), rows, row_bytes, 1, False)[0]

    def run() -> None:
        shared, tensor = unit.begin(issue)
        for cta in ctas:
            values: Bytes = read_shared_chunks(cta, chunks, "tcgen05.cp", shared)
            values = values.reshape(rows, row_bytes)
            words = np.ascontiguousarray(umma.expand(values, source) if source else values).view(np.uint32)
            there, count = tensor_unit(cta), words.shape[1]
            words = words.reshape(-1, 32, count).take(quarters, 0).reshape(128, count)
            there.write(slice(0, 128), target, words, "tcgen05.cp")
            cta.world.race.write(there.shadow, granules(_ALL_QUARTERS, target, count), tensor)

    unit.work(run, origin(w))
