"""Pure parts of the tensor instructions: descriptors, operand bytes, decoding, exact products, and TMA box arithmetic."""

import numpy as np
import pytest

from megamoe_dsl.hardware.operand_tile import Swizzle
from megamoe_dsl.hardware.tensor_map import TensorMap, TensorMapDtype
from megamoe_dsl.sim import SimError, formats, umma
from megamoe_dsl.sim.chunks import PADDING_POISON, box_at, to_shared_format
from megamoe_dsl.sim.descriptors import InstructionDescriptor, SmemDescriptor, operand_bytes


def test_smem_descriptor_fields():
    assert SmemDescriptor.decode_sm100(0x4000404000010000) == SmemDescriptor(0, 16, 1024, 128)
    assert SmemDescriptor.decode_sm100(0x4000404000010000 + 0x42).start == 0x420
    assert SmemDescriptor.decode_sm100(0x0000400800000040) == SmemDescriptor(1024, 0, 128, 0)
    assert SmemDescriptor.decode_sm90(1 << 62 | 64 << 32 | 1 << 16 | 4) == SmemDescriptor(64, 16, 1024, 128)


@pytest.mark.parametrize(
    ("word", "message"),
    [(0, "version"), (1 << 46 | 1 << 61, "layout type 1"), (1 << 46 | 1 << 49, "base offset 1"), (1 << 46 | 1 << 52, "absolute")],
)
def test_smem_descriptor_errors(word, message):
    with pytest.raises(SimError, match=message):
        SmemDescriptor.decode_sm100(word)


@pytest.mark.parametrize("span", [32, 64, 128])
def test_k_major_operand_reads_back_a_tma_tile(span):
    rows = 64
    tile = np.random.default_rng(span).integers(0, 256, (rows, span), np.uint8)
    smem = np.zeros(65536, np.uint8)
    smem[Swizzle(span)(8192 + np.arange(tile.size))] = tile.reshape(-1)
    for k in range(0, span, 32):
        descriptor = SmemDescriptor(8192 + k, 16, 8 * span, span)
        np.testing.assert_array_equal(smem[operand_bytes(descriptor, rows, 32, 1, False)], tile[:, k : k + 32])


def test_mn_major_operand_reads_back_a_transposed_tma_tile():
    tile = np.random.default_rng(0).integers(0, 1 << 16, (16, 64)).astype(np.uint16)  # 16 of K, 64 of M, M contiguous
    smem = np.zeros(8192, np.uint8)
    smem[Swizzle(128)(1024 + np.arange(tile.nbytes))] = tile.view(np.uint8).reshape(-1)
    descriptor = SmemDescriptor(1024, 4096, 1024, 128)
    raw = smem[operand_bytes(descriptor, 64, 32, 2, True)]
    np.testing.assert_array_equal(np.ascontiguousarray(raw).view(np.uint16), tile.T)


def test_swizzle_is_an_involution_that_keeps_rows():
    address = np.arange(4096)
    for span in (0, 32, 64, 128):
        moved = Swizzle(span)(address)
        np.testing.assert_array_equal(Swizzle(span)(moved), address)
        np.testing.assert_array_equal(moved // 128, address // 128)


def test_instruction_descriptor_of_a_compiled_kernel():
    fields = InstructionDescriptor.decode(0x10840280, "mxf8f6f4")
    assert (fields.m, fields.n, fields.a_format, fields.b_format, fields.scale_format) == (256, 16, "e2m1", "e4m3", "ue8m0")
    assert (fields.a_scale_id, fields.b_scale_id) == (0, 0)
    stepped = InstructionDescriptor.decode(0x10840280 | 3 << 29 | 3 << 4, "mxf8f6f4")
    assert (stepped.a_scale_id, stepped.b_scale_id) == (3, 3)
    fields.check_shape(2)
    with pytest.raises(SimError, match="M 256 N 16 with cta_group::1"):
        fields.check_shape(1)
    for m, n, ctas, allowed in ((128, 8, 1, True), (64, 8, 1, True), (128, 4, 1, False), (256, 8, 2, False), (256, 24, 2, False)):
        shape = InstructionDescriptor.decode(1 << 4 | m >> 4 << 24 | n >> 3 << 17, "f16")
        if allowed:
            shape.check_shape(ctas)
        else:
            with pytest.raises(SimError, match=f"M {m} N"):
                shape.check_shape(ctas)


@pytest.mark.parametrize(
    ("word", "kind", "message"),
    [
        (0, "i4", "kind::i4"),
        (1 << 2, "f16", "sparsity"),
        (0, "tf32", "accumulator type 0"),
        (1 << 4, "i8", "accumulator type 1"),
        (1 << 4 | 2 << 7, "f8f6f4", "formats A 2"),
    ],
)
def test_instruction_descriptor_errors(word, kind, message):
    with pytest.raises(SimError, match=message):
        InstructionDescriptor.decode(word, kind)


def test_decode_padded_and_packed_fp4():
    packed = np.arange(16, dtype=np.uint8)[None] * 17
    raw = np.full((1, 32), PADDING_POISON, np.uint8)
    raw[0, 0:8], raw[0, 16:24] = packed[0, :8], packed[0, 8:]
    expected = np.repeat(formats.E2M1, 2)[None]
    np.testing.assert_array_equal(umma.decode_operand(raw, "e2m1"), expected)
    np.testing.assert_array_equal(umma.decode_operand(packed, "e2m1x2"), expected)


def test_decode_padded_fp6():
    codes = np.arange(32) * 2 + 1
    raw = np.full((1, 2, 16), PADDING_POISON, np.uint8)
    for group in range(2):
        number = sum(int(code) << (6 * i) for i, code in enumerate(codes[16 * group : 16 * group + 16]))
        raw[0, group, :12] = np.frombuffer(number.to_bytes(12, "little"), np.uint8)
    np.testing.assert_array_equal(umma.decode_operand(raw.reshape(1, 32), "e3m2"), formats.E3M2[codes][None])


@pytest.mark.parametrize("name", ["f16", "bf16", "tf32"])
def test_decode_wide_formats(name):
    values = np.array([1.5, -2.0, 0.25, 8.0], np.float32)
    raw = {
        "f16": values.astype(np.float16).view(np.uint8),
        "bf16": formats.f32_to_bf16(values).view(np.uint8),
        "tf32": (values.view(np.uint32) | np.uint32(0x1FFF)).view(np.uint8),
    }[name]
    np.testing.assert_array_equal(umma.decode_operand(raw[None], name), values[None])


def test_products_are_exact_and_rounded_once():
    rng = np.random.default_rng(1)
    a_raw = rng.integers(0, 256, (128, 32), np.uint8)
    b_raw = rng.integers(0, 0x7E, (64, 32), np.uint8)
    a = umma.scale_rows(umma.decode_operand(a_raw, "e2m1x2")[:, :32], formats.UE8M0[rng.integers(120, 134, (128, 2))])
    b = umma.scale_rows(umma.decode_operand(b_raw, "e4m3"), formats.UE8M0[rng.integers(120, 134, (64, 1))])
    accumulator = rng.standard_normal((128, 64)).astype(np.float32)
    expected = (a.astype(np.longdouble) @ b.T.astype(np.longdouble) + accumulator).astype(np.float32)
    np.testing.assert_array_equal(umma.multiply_accumulate(a, b, accumulator), expected)
    np.testing.assert_array_equal(umma.multiply_accumulate(a, b, None), (a @ b.T).astype(np.float32))


def test_scale_block_counts():
    assert umma.scale_blocks("mxf8f6f4", ()) == 1
    assert umma.scale_blocks("mxf8f6f4", ("block32",)) == 1
    assert umma.scale_blocks("mxf4", ("scale_vec::2X",)) == 2
    assert umma.scale_blocks("mxf4nvf4", ("block16",)) == 4


def test_box_clips_at_every_edge():
    tensor_map = TensorMap(1 << 20, TensorMapDtype.U8, (40, 3, 2), (48, 144), (16, 2, 2))
    inside = box_at(tensor_map, (16, 1, 0))
    assert (inside.first, inside.last, inside.row_count, inside.row_bytes) == (0, 16, 4, 16)
    assert (inside.rows - (1 << 20)).tolist() == [64, 112, 208, 256]
    corner = box_at(tensor_map, (32, 2, 1))
    assert (corner.first, corner.last, corner.row_index.tolist()) == (0, 8, [0])
    assert (corner.rows - (1 << 20)).tolist() == [144 + 96 + 32]
    before = box_at(tensor_map, (-4, -1, 0))
    assert (before.first, before.last, before.row_index.tolist()) == (4, 16, [1, 3])
    assert (before.rows - (1 << 20)).tolist() == [0, 144]
    assert box_at(tensor_map, (40, 0, 0)).empty
    assert box_at(tensor_map, (-16, 0, 0)).empty
    assert box_at(tensor_map, (0, 0, 2)).empty


def test_unpacked_fp4_rows_get_padding():
    tensor_map = TensorMap(0, TensorMapDtype.FP4_UNPACKED, (256, 2), (128,), (128, 2), 128)
    rows = np.arange(128, dtype=np.uint8).reshape(2, 64)
    shared = to_shared_format(tensor_map, rows).reshape(2, 8, 16)
    np.testing.assert_array_equal(shared[:, :, :8].reshape(2, 64), rows)
    assert (shared[:, :, 8:] == PADDING_POISON).all()
    assert box_at(tensor_map, (128, 1)).rows.tolist() == [128 + 64]
