"""ldmatrix and stmatrix against the fragment layouts of the ISA."""

import numpy as np
import pytest
from ptx_cases import run

from megamoe_dsl.sim import SimError

SHARED = ".shared .align 16 .b8 smem[1024];"
THREAD = np.arange(32)


def fragment(tile):
    """(32, 2): the elements of row t / 4 from column 2 (t % 4)."""
    return np.stack([tile[THREAD // 4, 2 * (THREAD % 4) + q] for q in range(2)], axis=1)


def names(count):
    return "{" + ", ".join(f"%r{10 + i}" for i in range(count)) + "}"


def copy_in(bytes_per_lane):
    """Each lane copies its part of the input to shared memory, 16 bytes at a time."""
    text = f"mov.u32 %r1, smem; mul.lo.u32 %r2, %r50, {bytes_per_lane}; add.s32 %r3, %r1, %r2;\n"
    text += "cvt.u64.u32 %rd1, %r2; add.s64 %rd2, %rd50, %rd1;\n"
    for k in range(0, bytes_per_lane, 4):
        text += f"ld.global.u32 %r4, [%rd2+{k}]; st.shared.u32 [%r3+{k}], %r4;\n"
    return text + "bar.warp.sync 0xffffffff;\n"


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(count, transposed):
    tiles = np.random.default_rng(count).integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    out = np.zeros((32, count), np.uint32)
    save = "".join(f"st.global.u32 [%rd4+{4 * i}], %r{10 + i};\n" for i in range(count))
    body = (
        copy_in(16)
        + f"""
    shl.b32 %r5, %r50, 4;
    add.s32 %r6, %r1, %r5;
    ldmatrix.sync.aligned.m8n8.x{count}{".trans" if transposed else ""}.shared.b16 {names(count)}, [%r6];
    mul.wide.u32 %rd3, %r50, {4 * count};
    add.s64 %rd4, %rd51, %rd3;
    {save}
    """
    )
    report = run(body, [tiles, out], shared=SHARED)
    for k in range(count):
        expected = fragment(tiles[k].T if transposed else tiles[k])
        np.testing.assert_array_equal(out[:, k].copy().view(np.uint16).reshape(32, 2), expected)
    assert not report.findings


def store(opcode, registers, rows):
    """Run one stmatrix of `registers` (32, count) and return `rows` rows of 16 bytes."""
    count = registers.shape[1]
    out = np.zeros(rows * 16, np.uint8)
    load = "".join(f"ld.global.u32 %r{10 + i}, [%rd2+{4 * i}];\n" for i in range(count))
    body = f"""
    mov.u32 %r1, smem;
    mul.wide.u32 %rd1, %r50, {4 * count};
    add.s64 %rd2, %rd50, %rd1;
    {load}
    shl.b32 %r5, %r50, 4;
    add.s32 %r6, %r1, %r5;
    {opcode} [%r6], {names(count)};
    bar.warp.sync 0xffffffff;
    setp.lt.u32 %p1, %r50, {rows};
    @!%p1 bra END;
    ld.shared.v4.u32 {{%r20, %r21, %r22, %r23}}, [%r6];
    cvt.u64.u32 %rd3, %r5;
    add.s64 %rd4, %rd51, %rd3;
    st.global.v4.u32 [%rd4], {{%r20, %r21, %r22, %r23}};
    END:
    """
    report = run(body, [np.ascontiguousarray(registers), out], shared=SHARED)
    assert not report.findings
    return out


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_stmatrix(count, transposed):
    tiles = np.random.default_rng(count).integers(0, 1 << 16, (count, 8, 8)).astype(np.uint16)
    registers = np.concatenate([fragment(tile).copy().view(np.uint32) for tile in tiles], axis=1)
    opcode = f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    expected = tiles.transpose(0, 2, 1) if transposed else tiles
    np.testing.assert_array_equal(store(opcode, registers, 8 * count).view(np.uint16).reshape(count, 8, 8), expected)


@pytest.mark.parametrize("order", ["x4.m8n8.shared.b16.trans", "m8n8.x4.trans.shared::cta.b16", "x4.trans.m8n8.b16.shared"])
def test_modifiers_in_any_order(order):
    tiles = np.random.default_rng(4).integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    registers = np.concatenate([fragment(tile).copy().view(np.uint32) for tile in tiles], axis=1)
    stored = store(f"stmatrix.sync.aligned.{order}", registers, 32).view(np.uint16).reshape(4, 8, 8)
    np.testing.assert_array_equal(stored, tiles.transpose(0, 2, 1))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_of_bytes(count):
    tiles = np.random.default_rng(count).integers(0, 256, (count, 16, 8)).astype(np.uint8)
    registers = np.zeros((32, count, 4), np.uint8)
    for k in range(count):
        for h in range(2):
            for q in range(2):
                registers[:, k, 2 * h + q] = tiles[k, THREAD // 4 + 8 * h, 2 * (THREAD % 4) + q]
    stored = store(f"stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8", registers.view(np.uint32)[:, :, 0], 8 * count)
    np.testing.assert_array_equal(stored.reshape(count, 8, 16), tiles.transpose(0, 2, 1))


@pytest.mark.parametrize("tiles", [1, 2])
def test_ldmatrix_of_bytes(tiles):
    matrix = np.random.default_rng(tiles).integers(0, 256, (16 * tiles, 16)).astype(np.uint8)
    data, out = np.zeros(512, np.uint8), np.zeros((32, 2 * tiles), np.uint32)
    data[: matrix.size] = matrix.reshape(-1)
    save = "".join(f"st.global.u32 [%rd4+{4 * i}], %r{10 + i};\n" for i in range(2 * tiles))
    body = f"""{copy_in(16)} shl.b32 %r5, %r50, 4; add.s32 %r6, %r1, %r5;
    ldmatrix.sync.aligned.m16n16.x{tiles}.trans.shared.b8 {names(2 * tiles)}, [%r6];
    mul.wide.u32 %rd3, %r50, {8 * tiles}; add.s64 %rd4, %rd51, %rd3; {save}"""
    assert run(body, [data, out], shared=SHARED).findings == []
    held = out.view(np.uint8).reshape(32, tiles, 2, 4)
    for tile in range(tiles):
        for row in range(16):
            for column in range(16):  # a thread has four rows of the columns t / 4 and t / 4 + 8
                thread, register, byte = 4 * (column % 8) + row // 4, row // 2 % 2, row % 2 + 2 * (column // 8)
                assert held[thread, tile, register, byte] == matrix[16 * tile + row, column]


def test_rows_must_be_aligned():
    with pytest.raises(SimError, match="misaligned"):
        run(copy_in(16) + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r1+8];", [np.zeros(512, np.uint8)], shared=SHARED)
