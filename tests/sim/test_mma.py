"""mma.sync against numpy, with the fragments written out as the ISA lists them."""

import numpy as np
import pytest
from ptx_cases import run

from megamoe_dsl.sim import SimError, formats
from megamoe_dsl.sim.umma import multiply_accumulate

GROUP, PART = np.arange(32) // 4, np.arange(32) % 4


def operand(name, rows, k, rng):
    """Raw elements (rows, k) and their values."""
    if name in ("s8", "u8"):
        raw = rng.integers(0, 256, (rows, k)).astype(np.uint8)
        return raw, raw.view(np.int8 if name == "s8" else np.uint8).astype(np.float64)
    if name in ("e4m3", "e5m2"):
        raw = rng.integers(0, 0x70, (rows, k)).astype(np.uint8)
        return raw, (formats.E4M3 if name == "e4m3" else formats.E5M2)[raw]
    values = rng.integers(-8, 9, (rows, k)).astype(np.float32)
    raw = {"f16": values.astype(np.float16), "bf16": (values.view(np.uint32) >> 16).astype(np.uint16), "tf32": values}[name]
    return raw, values.astype(np.float64)


def a_words(raw):
    """a0, a1 (8 rows below), a2 (next 16 bytes), a3: four bytes each, from column 4 / size * (thread % 4)."""
    rows = raw.view(np.uint32)
    return [rows[GROUP + 8 * h, PART + 4 * g] for g in range(rows.shape[1] // 4) for h in range(2)]


def b_words(raw):
    rows = raw.view(np.uint32)
    return [rows[GROUP, PART + 4 * g] for g in range(rows.shape[1] // 4)]


def c_words(matrix):
    """c0, c1 at (group, 2 part + {0, 1}), c2, c3 eight rows below; 16-bit ones in pairs."""
    pairs = [matrix[GROUP[:, None] + 8 * h, 2 * PART[:, None] + np.arange(2)] for h in range(2)]
    if matrix.itemsize == 2:
        return [np.ascontiguousarray(p).view(np.uint32)[:, 0] for p in pairs]
    return [np.ascontiguousarray(p[:, q]).view(np.uint32) for p in pairs for q in range(2)]


CASES = [
    ("m16n8k16", "f32", "f16", "f16"), ("m16n8k8", "f32", "f16", "f16"), ("m16n8k16", "f16", "f16", "f16"),
    ("m16n8k16", "f32", "bf16", "bf16"), ("m16n8k8", "f32", "tf32", "tf32"), ("m16n8k4", "f32", "tf32", "tf32"),
    ("m16n8k32", "s32", "s8", "u8"), ("m16n8k16", "s32", "u8", "u8"), ("m16n8k32", "f32", "e4m3", "e5m2"),
]  # fmt: skip


def multiply(shape, d, a, b, raw_a, raw_b, c, flags=""):
    """D as a (16, 8) matrix."""
    words = [a_words(raw_a), b_words(raw_b), c_words(c)]
    names, text = [], "mul.wide.u32 %rd1, %r50, 4; add.s64 %rd2, %rd50, %rd1;\n"
    data = np.concatenate([w for group in words for w in group])
    for count in map(len, words):
        names.append([f"%r{10 + sum(map(len, names)) + i}" for i in range(count)])
    for i, name in enumerate(n for group in names for n in group):
        text += f"ld.global.b32 {name}, [%rd2+{128 * i}];\n"
    results = [f"%r{30 + i}" for i in range(len(words[2]))]
    lists = ", ".join("{" + ", ".join(group) + "}" for group in [results, *names])
    text += f"mma.sync.aligned.{shape}.row.col{flags}.{d}.{a}.{b}.{d} {lists};\nadd.s64 %rd3, %rd51, %rd1;\n"
    text += "".join(f"st.global.b32 [%rd3+{128 * i}], {name};\n" for i, name in enumerate(results))
    out = np.zeros((len(results), 32), np.uint32)
    run(text, [data, out])
    matrix = np.zeros_like(c)
    for h in range(2):
        rows, columns = GROUP[:, None] + 8 * h, 2 * PART[:, None] + np.arange(2)
        if c.itemsize == 2:
            matrix[rows, columns] = np.ascontiguousarray(out[h]).view(c.dtype).reshape(32, 2)
        else:
            matrix[rows, columns] = out[2 * h : 2 * h + 2].view(c.dtype).T
    return matrix


@pytest.mark.parametrize(("shape", "d", "a", "b"), CASES)
def test_products(shape, d, a, b):
    rng = np.random.default_rng(len(shape) + len(d))
    k = int(shape.rsplit("k", 1)[1])
    (raw_a, left), (raw_b, right) = operand(a, 16, k, rng), operand(b, 8, k, rng)
    dtype = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[d]
    c = rng.integers(-50, 50, (16, 8)).astype(dtype)
    np.testing.assert_array_equal(multiply(shape, d, a, b, raw_a, raw_b, c), multiply_accumulate(left, right, c, dtype))


def test_integers_wrap_or_saturate():
    raw = np.full((16, 32), 127, np.uint8)
    c = np.full((16, 8), 2**31 - 1, np.int32)
    assert (multiply("m16n8k32", "s32", "s8", "s8", raw, raw[:8], c) == np.int32(32 * 127 * 127 - 2**31 - 1)).all()
    assert (multiply("m16n8k32", "s32", "s8", "s8", raw, raw[:8], c, ".satfinite") == 2**31 - 1).all()


OTHERS = ["mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"]


@pytest.mark.parametrize("opcode", OTHERS)
def test_others_are_refused(opcode):
    with pytest.raises(SimError, match="is not modeled"):
        run(opcode + " {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%f1, %f2, %f3, %f4};", [np.zeros(1)])
