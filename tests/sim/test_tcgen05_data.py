"""tcgen05.ld, st and cp: which lane and column every register and every copied row reaches."""

import re

import numpy as np
import pytest
from ptx_cases import run
from tcgen05_cases import ALLOC, BASE, DUMP, FREE, LOAD_IMAGE, SCALE_LAYOUT, SFA_AT, SHARED, WAIT_COMMIT, Case

# Every register of a warp goes to TMEM with one shape and comes back with 32x32b.
SHAPES = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4}


def where_is(shape, register, thread):
    """Lane and column by the figures of the ISA."""
    if shape == "32x32b":
        return thread, register
    if shape == "16x64b":
        return thread // 4 + 8 * (thread % 2), 2 * register + thread // 2 % 2
    if shape == "16x128b":
        return thread // 4 + 8 * (register % 2), 4 * (register // 2) + thread % 4
    return thread // 4 + 8 * (register // 2 % 2), 8 * (register // 4) + 2 * (thread % 4) + register % 2


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("packed", [False, True])
def test_ld_and_st_shapes(shape, packed):
    count = 2 * SHAPES[shape]
    registers = "{" + ", ".join(f"%r{30 + i}" for i in range(count)) + "}"
    back = "{" + ", ".join(f"%r{40 + i}" for i in range(count)) + "}"
    fill = "".join(f"shl.b32 %r{30 + i}, %r50, 8; add.s32 %r{30 + i}, %r{30 + i}, {i + 0x70000};\n" for i in range(count))
    save = "".join(f"st.global.u32 [%rd7+{128 * 1024 + 4 * i}], %r{40 + i};\n" for i in range(count))
    body = (
        f"""
    mov.u32 %r1, smem;
    mov.u32 %r6, 0;
    {ALLOC.format(group=1)}
    and.b32 %r22, %r50, 96;
    shl.b32 %r22, %r22, 16;
    add.s32 %r22, %r22, %r3;
    {fill}
    tcgen05.st.sync.aligned.{shape}.x2{".unpack::16b" if packed else ""}.b32 [%r22], {registers};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.{shape}.x2{".pack::16b" if packed else ""}.b32 {back}, [%r22];
    tcgen05.wait::ld.sync.aligned;
    mul.wide.u32 %rd6, %r50, 64;
    add.s64 %rd7, %rd51, %rd6;
    {save}
    """
        + DUMP
        + FREE.format(group=1)
    )
    out = np.zeros(128 * 256 + 128 * 16, np.uint32)
    report = run(body, [np.zeros(4, np.uint32), out], block=128, shared=SHARED)
    assert not report.findings
    dumped, returned = out[: 128 * 256].reshape(128, 256), out[128 * 256 :].reshape(128, 16)
    for thread in range(128):
        for register in range(count):
            value = 0x70000 + (thread << 8) + register
            lane, column = where_is(shape, register, thread % 32)
            lane += thread // 32 * 32
            assert returned[thread, register] == value
            if packed:
                assert (dumped[lane, 2 * column], dumped[lane, 2 * column + 1]) == (value & 0xFFFF, value >> 16)
            else:
                assert dumped[lane, column] == value


def test_loading_uninitialised_columns_is_a_warning():
    body = "mov.u32 %r1, smem; mov.u32 %r6, 0;" + ALLOC.format(group=1) + DUMP + FREE.format(group=1)
    report = run(body, [np.zeros(4, np.uint32), np.zeros(128 * 256, np.uint32)], block=128, shared=SHARED)
    assert [re.sub(r"line \d+", "line N", text) for text in report.warnings] == ["PTX line N: tcgen05.ld of uninitialised TMEM"]


@pytest.mark.parametrize(
    ("shape", "rows", "quarters"),
    [("64x128b.warpx2::01_23", 64, (0, 0, 1, 1)), ("64x128b.warpx2::02_13", 64, (0, 1, 0, 1)), ("128x128b", 128, (0, 1, 2, 3))],
)
def test_copy_shapes(shape, rows, quarters):
    case = Case("f8f6f4", 128, 64, 1)
    data = np.random.default_rng(3).integers(0, 1 << 32, (rows, 4), np.uint32)
    case.images[0, SFA_AT : SFA_AT + 16 * rows] = data.view(np.uint8).reshape(-1)  # rows of 16 bytes, groups of 8 rows 128 apart
    copy = f"""
    setp.eq.and.u32 %p5, %r6, 0, %p1;
    add.s32 %r8, %r1, 8;
    mov.b64 %rd10, {SCALE_LAYOUT + (BASE + SFA_AT) // 16};
    @%p5 tcgen05.cp.cta_group::1.{shape} [%r3], %rd10;
    @%p5 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r8];
    """
    body = LOAD_IMAGE + ALLOC.format(group=1) + copy + WAIT_COMMIT + DUMP + FREE.format(group=1)
    case.n = 4
    result, report = case.run(body)
    expected = np.concatenate([data[32 * q : 32 * q + 32] for q in quarters])
    np.testing.assert_array_equal(result.view(np.uint32), expected)
    assert not report.findings


def test_load_without_wait_at_exit_is_a_warning():
    body = "mov.u32 %r1, smem; mov.u32 %r6, 0;" + ALLOC.format(group=1)
    body += "and.b32 %r22, %r50, 96; shl.b32 %r22, %r22, 16; tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r30}, [%r22];" + FREE.format(group=1)
    report = run(body, [], block=128, shared=SHARED)
    assert sum("exit without tcgen05.wait for 1 loads" in text for text in report.warnings) == 4
