"""Tensor maps of what the loaders of a pair fetch (load.py): rows of tokens and weights, and words of their scales."""

from __future__ import annotations

from typing import Any

from ...hardware.cta_pair import BLOCK_N
from ...hardware.operand_tile import KBlock
from ...hardware.tensor_map import MapFields, TensorMapDtype


def byte_rows(address: Any, width: int, height: Any, box_height: int, span: int) -> MapFields:
    """`height` rows of `width` bytes, in boxes of `span` bytes, which is the swizzle, by `box_height` rows."""
    return MapFields(address, TensorMapDtype.U8, (width, height), (width,), (span, box_height), span)


def weight_rows(address: Any, k: int, height: Any, k_block: KBlock, box_height: int = BLOCK_N) -> MapFields:
    """`height` rows of `k` weights, as they are in memory; a CTA's of a stage, unpacked where a stage has a byte for each E2M1."""
    row_bytes = k * k_block.weight_bits // 8
    if not k_block.unpacks:
        return byte_rows(address, row_bytes, height, box_height, k_block.row_bytes)
    box = (k_block.channels, box_height)
    return MapFields(address, TensorMapDtype.FP4_UNPACKED, (k, height), (row_bytes,), box, k_block.row_bytes)


def scale_words(address: Any, width: Any, height: int, box_width: int, k_block: KBlock, pitch: Any = None) -> MapFields:
    """[words of a row, rows] words of scales in UTCCP order, `height` by `width` of them, `pitch` words from one row to the next; a stage's
    for `box_width` rows."""
    strides = (4 * (width if pitch is None else pitch),)
    return MapFields(address, TensorMapDtype.U32, (width, height), strides, (box_width, k_block.words), 0)
