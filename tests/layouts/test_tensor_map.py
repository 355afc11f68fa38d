"""TensorMap: hardware words, round trip, sizes and limits."""

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from cuda.bindings import driver
from hypothesis import given
from hypothesis import strategies as st

from megamoe_dsl.hardware.tensor_map import DESCRIPTOR_BYTES, TensorMap, TensorMapDtype
from megamoe_dsl.runtime import cuda_kernel
from stand_in.kernels import encode

ADDRESS = 0x7F0012340000

# First 64 bytes as the inline encoder of CuTe DSL 4.8.1 (make_tiled_tma_atom) produced them, one row per experiment:
# dtype, dims, byte strides, box, swizzle, words.
DSL_WORDS = [
    (TensorMapDtype.F16, (1024, 2048), (2048,), (16, 32), 0, "00240312 80 0 0 0 0 3ff 7ff 0 0 0 f000000 1f 0"),
    (TensorMapDtype.BF16, (1024, 2048), (2048,), (16, 32), 0, "00240512 80 0 0 0 0 3ff 7ff 0 0 0 f000000 1f 0"),
    (TensorMapDtype.F32, (1024, 2048), (4096,), (16, 32), 0, "00240392 100 0 0 0 0 3ff 7ff 0 0 0 f000000 1f 0"),
    (TensorMapDtype.TF32, (1024, 2048), (4096,), (16, 32), 0, "00250392 100 0 0 0 0 3ff 7ff 0 0 0 f000000 1f 0"),
    (TensorMapDtype.U8, (1024, 2048), (1024,), (16, 32), 0, "00240012 40 0 0 0 0 3ff 7ff 0 0 0 f000000 1f 0"),
    (TensorMapDtype.U16, (1024, 2048), (2048,), (16, 32), 0, "00240092 80 0 0 0 0 3ff 7ff 0 0 0 f000000 1f 0"),
    (TensorMapDtype.U32, (1024, 2048), (4096,), (16, 32), 0, "00240112 100 0 0 0 0 3ff 7ff 0 0 0 f000000 1f 0"),
    (TensorMapDtype.U64, (1024, 2048), (8192,), (16, 32), 0, "00240212 200 0 0 0 0 3ff 7ff 0 0 0 f000000 1f 0"),
    (TensorMapDtype.F64, (1024, 2048), (8192,), (16, 32), 0, "00240492 200 0 0 0 0 3ff 7ff 0 0 0 f000000 1f 0"),
    (TensorMapDtype.F16, (1024, 2048), (2048,), (64, 32), 128, "00246312 80 0 0 0 0 3ff 7ff 0 0 0 3f000000 1f 0"),
    (TensorMapDtype.F16, (1024, 2048), (2048,), (32, 32), 64, "00244312 80 0 0 0 0 3ff 7ff 0 0 0 1f000000 1f 0"),
    (TensorMapDtype.F16, (1024, 2048), (2048,), (16, 32), 32, "00242312 80 0 0 0 0 3ff 7ff 0 0 0 f000000 1f 0"),
    (TensorMapDtype.FP4_PACKED, (1024, 2048), (512,), (256, 32), 128, "00246592 20 0 0 0 0 3ff 7ff 0 0 0 ff000000 1f 0"),
    (TensorMapDtype.FP4_UNPACKED, (1024, 2048), (512,), (128, 32), 128, "00246612 20 0 0 0 0 3ff 7ff 0 0 0 7f000000 1f 0"),
    (TensorMapDtype.F16, (64,), (), (32,), 0, "00040302 0 0 0 0 0 3f 0 0 0 0 1f000000 0 0"),
    (TensorMapDtype.F16, (64, 128, 256), (128, 16384), (32, 8, 4), 0, "00240322 8 400 0 0 0 3f 7f ff 0 0 1f000000 307 0"),
    (
        TensorMapDtype.F16,
        (64, 128, 256, 16, 8),
        (128, 16384, 0x400000, 0x4000000),
        (32, 8, 4, 2, 3),
        0,
        "00240342 8 400 40000 400000 0 3f 7f ff f 7 1f000000 2010307 0",
    ),
]


@pytest.mark.parametrize(("dtype", "dims", "strides", "box", "swizzle", "words"), DSL_WORDS)
def test_words_equal_the_dsl_encoder(dtype, dims, strides, box, swizzle, words):
    tensor_map = TensorMap(ADDRESS, dtype, dims, strides, box, swizzle)
    expected = [ADDRESS & 0xFFFFFFFF, ADDRESS >> 32, *(int(w, 16) for w in words.split())]
    encoded = tensor_map.encode()
    assert len(encoded) == DESCRIPTOR_BYTES
    assert list(struct.unpack("<16I", encoded[:64])) == expected
    assert encoded[64:] == bytes(64)


def test_high_stride_bits_go_to_word_7():
    tensor_map = TensorMap(ADDRESS, TensorMapDtype.U8, (128, 2, 2), (1 << 37, 3 << 38), (128, 1, 1))
    words = struct.unpack("<16I", tensor_map.encode()[:64])
    assert words[3:8] == ((1 << 33) & 0xFFFFFFFF, (3 << 34) & 0xFFFFFFFF, 0, 0, 0x2 | 0xC << 4)
    assert TensorMap.decode(tensor_map.encode()) == tensor_map


@st.composite
def tensor_maps(draw: st.DrawFn) -> TensorMap:
    dtype = draw(st.sampled_from(TensorMapDtype))
    swizzle = draw(st.sampled_from((0, 128) if dtype is TensorMapDtype.FP4_UNPACKED else (0, 32, 64, 128)))
    rank = draw(st.integers(1, 5))
    unit = 128 // dtype.smem_bits  # elements in 16 bytes of shared memory
    inner_limit = min(256, swizzle * 8 // dtype.smem_bits) if swizzle else 256
    inner = 128 if dtype is TensorMapDtype.FP4_UNPACKED else unit * draw(st.integers(1, inner_limit // unit))
    inner_dim = 128 * draw(st.integers(1, 1 << 20))
    outer = st.lists(st.integers(1, 1 << 32), min_size=rank - 1, max_size=rank - 1)
    strides = draw(st.lists(st.integers(0, (1 << 35) - 1), min_size=rank - 1, max_size=rank - 1))
    box = draw(st.lists(st.integers(1, 256), min_size=rank - 1, max_size=rank - 1))
    address = 32 * draw(st.integers(0, 1 << 50))
    l2_promotion = draw(st.sampled_from((0, 64, 128, 256)))
    return TensorMap(address, dtype, (inner_dim, *draw(outer)), tuple(32 * s for s in strides), (inner, *box), swizzle, l2_promotion)


@given(tensor_maps())
def test_round_trip(tensor_map):
    assert TensorMap.decode(tensor_map.encode()) == tensor_map


@given(tensor_maps())
def test_sizes_differ_only_by_the_padding_of_unpacked_fp4(tensor_map):
    factor = 2 if tensor_map.dtype is TensorMapDtype.FP4_UNPACKED else 1
    assert tensor_map.box_bytes == factor * tensor_map.transaction_bytes


def test_box_sizes_of_our_operands():
    weights = TensorMap(ADDRESS, TensorMapDtype.FP4_UNPACKED, (4096, 4096), (2048,), (128, 128), 128)
    assert (weights.box_bytes, weights.transaction_bytes) == (16384, 8192)
    tokens = TensorMap(ADDRESS, TensorMapDtype.U8, (4096, 512), (4096,), (128, 96), 128)
    assert (tokens.box_bytes, tokens.transaction_bytes) == (12288, 12288)


def test_the_driver_is_asked_for_the_same_map(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*given: Any) -> tuple[Any, Any]:
        return driver.CUresult.CUDA_SUCCESS, encode(*given)

    monkeypatch.setattr(cuda_kernel, "driver", SimpleNamespace(**vars(driver) | {"cuTensorMapEncodeTiled": answer}))
    weights = TensorMap(ADDRESS, TensorMapDtype.FP4_UNPACKED, (4096, 512), (2048,), (128, 128), 128)
    assert cuda_kernel.encode_tensor_map(weights) == weights.encode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"address": 8}, r"address = 8: must be a multiple of 16"),
        ({"dims": ()}, r"dims = \(\): must be 1 to 5"),
        ({"dims": (0, 4)}, r"dims = \(0, 4\)"),
        ({"strides": ()}, r"strides = \(\): must be 1 byte strides for 2 dims"),
        ({"strides": (24,)}, r"strides = \(24,\): must be multiples of 16"),
        ({"strides": (1 << 40,)}, r"below 2\*\*40"),
        ({"box": (16,)}, r"box = \(16,\): must be 2 extents"),
        ({"box": (16, 257)}, r"box = \(16, 257\): must be between 1 and 256"),
        ({"box": (24, 1)}, r"multiple of 16 bytes in the innermost dimension, got 24"),
        ({"box": (128, 1), "swizzle": 64}, r"at most the swizzle span of 64 bytes in the innermost dimension, got 128"),
        ({"swizzle": 16}, r"swizzle = 16: must be one of"),
        ({"l2_promotion": 7}, r"l2_promotion = 7"),
        ({"dtype": TensorMapDtype.FP4_UNPACKED, "address": 16}, r"address = 16: must be a multiple of 32"),
        ({"dtype": TensorMapDtype.FP4_UNPACKED, "box": (64, 1)}, r"128 elements in the innermost dimension of unpacked FP4"),
        ({"dtype": TensorMapDtype.FP4_UNPACKED, "box": (128, 1), "swizzle": 32}, r"0 or 128 for unpacked FP4"),
        ({"dtype": TensorMapDtype.FP4_PACKED, "dims": (129, 4)}, r"even in the innermost"),
    ],
)
def test_limits_name_the_field(change, message):
    good = {"address": ADDRESS, "dtype": TensorMapDtype.U8, "dims": (256, 4), "strides": (256,), "box": (16, 4), "swizzle": 0}
    with pytest.raises(ValueError, match=message):
        TensorMap(**(good | change))


def test_decoding_garbage_is_an_error():
    with pytest.raises(ValueError, match="got 16 bytes"):
        TensorMap.decode(bytes(16))
    with pytest.raises(ValueError, match="unknown element type code 0xf"):
        TensorMap.decode(struct.pack("<16I", 0, 0, 15 << 7, *([0] * 13)))
