"""tcgen05.ld, st and cp: which lane and column every register and every copied row reaches."""

import re

import numpy as np
import pytest
from ptx_cases import run
from tcgen05_cases import A_AT, ALLOC, B_AT, BASE, DUMP, FREE, LOAD_IMAGE, SCALE_LAYOUT, SFA_AT, SHARED, SWIZZLE_128, WAIT_COMMIT, Case

from megamoe_dsl.sim import Assumptions, SimError, formats

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


def test_loading_uninitialized_columns_is_a_warning():
    body = "mov.u32 %r1, smem; mov.u32 %r6, 0;" + ALLOC.format(group=1) + DUMP + FREE.format(group=1)
    report = run(body, [np.zeros(4, np.uint32), np.zeros(128 * 256, np.uint32)], block=128, shared=SHARED)
    assert [re.sub(r"line \d+", "line N", text) for text in report.warnings] == ["PTX line N: tcgen05.ld of uninitialized TMEM"]


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


@pytest.mark.parametrize(("source", "bits", "shift"), [("b4x16_p64", 4, 2), ("b6x16_p32", 6, 1)])
def test_a_copy_puts_narrow_floats_into_the_middle_of_bytes(source, bits, shift):
    """128 rows of two groups: 16 values of 4 or 6 bits, packed from the lowest bit on, and padding."""
    case = Case("f8f6f4", 128, 64, 1)
    codes = np.random.default_rng(4).integers(0, 1 << bits, (128, 2, 16)).astype(np.uint8)
    packed = np.packbits((codes[..., None] >> np.arange(bits) & 1).reshape(128, 2, -1), axis=-1, bitorder="little")
    padded = np.concatenate([packed, np.full((128, 2, 16 - 2 * bits), 0xEE, np.uint8)], axis=-1)
    rows = np.arange(128)[:, None]
    where = B_AT + rows // 8 * 256 + rows % 8 * 16 + np.arange(2) * 128  # core matrices of 8 rows of 16 bytes, the groups 128 apart
    case.images[0][where[..., None] + np.arange(16)] = padded
    layout = 1 << 46 | (256 // 16) << 32 | (128 // 16) << 16
    copy = f"""
    setp.eq.and.u32 %p5, %r6, 0, %p1;
    add.s32 %r8, %r1, 8;
    mov.b64 %rd10, {layout + (BASE + B_AT) // 16};
    @%p5 tcgen05.cp.cta_group::1.128x256b.b8x16.{source} [%r3], %rd10;
    @%p5 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r8];
    """
    case.n = 8
    result, report = case.run(LOAD_IMAGE + ALLOC.format(group=1) + copy + WAIT_COMMIT + DUMP + FREE.format(group=1))
    held = np.ascontiguousarray(result).view(np.uint8).reshape(128, 2, 16)
    np.testing.assert_array_equal(held, codes << shift)
    assert not report.findings


@pytest.mark.parametrize(("name", "code", "shift"), [("e2m1", 5, 2), ("e3m2", 4, 1), ("e2m3", 3, 1)])
def test_an_operand_in_tensor_memory_is_held_in_the_middle_of_bytes(name, code, shift):
    """A of the first MMA comes from columns 256 and up, where stores have put one byte a value."""
    case = Case("f8f6f4", 128, 64, 1)
    table = {"e2m1": formats.E2M1, "e3m2": formats.E3M2, "e2m3": formats.E2M3}[name]
    codes = np.random.default_rng(5).integers(0, len(table), (128, 32)).astype(np.uint8)
    case.images[0, A_AT : A_AT + 4096] = (codes << shift).reshape(-1)  # 32 bytes a row, not swizzled
    store = f"""
    shl.b32 %r20, %r50, 5; add.s32 %r20, %r20, %r1; and.b32 %r22, %r50, 96; shl.b32 %r22, %r22, 16; add.s32 %r22, %r22, %r3;
    ld.shared.v4.b32 {{%r30, %r31, %r32, %r33}}, [%r20+{A_AT}]; ld.shared.v4.b32 {{%r34, %r35, %r36, %r37}}, [%r20+{A_AT + 16}];
    tcgen05.st.sync.aligned.32x32b.x8.b32 [%r22+256], {{%r30, %r31, %r32, %r33, %r34, %r35, %r36, %r37}};
    tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
    setp.eq.and.u32 %p5, %r6, 0, %p1; add.s32 %r8, %r1, 8; add.s32 %r11, %r3, 256;
    mov.b32 %r13, {case.descriptor & ~(7 << 7) | code << 7}; mov.b64 %rd12, {SWIZZLE_128 + (BASE + B_AT) // 16};
    setp.eq.u32 %p6, 0, 1;
    @%p5 tcgen05.mma.cta_group::1.kind::f8f6f4 [%r3], [%r11], %rd12, %r13, %p6;
    @%p5 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r8];
    """
    result, report = case.run(LOAD_IMAGE + ALLOC.format(group=1) + store + WAIT_COMMIT + DUMP + FREE.format(group=1))
    np.testing.assert_array_equal(result, (table[codes] @ case.b.values.T).astype(np.float32))
    assert not report.findings


def test_load_without_wait_at_exit_is_a_warning():
    body = "mov.u32 %r1, smem; mov.u32 %r6, 0;" + ALLOC.format(group=1)
    body += "and.b32 %r22, %r50, 96; shl.b32 %r22, %r22, 16; tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r30}, [%r22];" + FREE.format(group=1)
    report = run(body, [], block=128, shared=SHARED)
    assert sum("exit without tcgen05.wait for 1 loads" in text for text in report.warnings) == 4


LOAD_TWO = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r30, %r31}, [%r22];"
SAVE = "mul.wide.u32 %rd6, %r50, 8; add.s64 %rd7, %rd50, %rd6; st.global.b64 [%rd7], %rd9;"


def pairs(between: str, after: str = "", **options) -> np.ndarray:
    """Words (thread, 2 x thread) in two columns, loaded; what `%rd9` holds after the wait."""
    body = f"""mov.u32 %r1, smem; mov.u32 %r6, 0; {ALLOC.format(group=1)}
    and.b32 %r22, %r50, 96; shl.b32 %r22, %r22, 16; add.s32 %r22, %r22, %r3; shl.b32 %r24, %r50, 1;
    tcgen05.st.sync.aligned.32x32b.x2.b32 [%r22], {{%r50, %r24}}; tcgen05.wait::st.sync.aligned;
    {LOAD_TWO} {between} tcgen05.wait::ld.sync.aligned; {after} {SAVE} {FREE.format(group=1)}"""
    out = np.zeros((128, 2), np.uint32)
    assert run(body, [out], block=128, shared=SHARED, **options).findings == []
    return out


THREADS = np.arange(128)[:, None] * np.array([1, 2])


@pytest.mark.parametrize(
    "between",
    [
        "mov.b64 %rd9, {%r30, %r31};",
        "mov.b32 %r40, %r30; mov.b32 %r41, %r31; mov.b64 %rd9, {%r40, %r41};",
        "mov.b32 %f1, %r30; mov.b64 %rd8, {%f1, %r31}; mov.b64 {%r40, %r41}, %rd8; mov.b64 %rd9, {%r40, %r41};",
    ],
)
def test_copies_of_a_load_are_followed(between):
    np.testing.assert_array_equal(pairs(between), THREADS)


def test_a_copy_that_was_overwritten_stays_so():
    """Control flow hides the write from the check at load time."""
    after = "mov.b64 %rd9, {%r40, %r31};"
    between = "mov.b32 %r40, %r30; bra NEXT; NEXT: mov.u32 %r40, 5;"
    np.testing.assert_array_equal(pairs(between, after), np.where([True, False], 5, THREADS))


@pytest.mark.parametrize(
    "between",
    ["add.u32 %r40, %r30, 1;", "mov.b32 %r40, %r31; add.u32 %r41, %r40, 1;", "setp.eq.u32 %p9, %r50, 0; @%p9 mov.b32 %r40, %r30;"],
)
def test_other_uses_before_the_wait_are_refused(between):
    with pytest.raises(SimError, match=r"uses a register of the tcgen05\.ld at PTX line \d+ before tcgen05\.wait::ld"):
        pairs(between)


def test_a_use_in_another_block_of_a_kernel_without_waits_is_refused():
    body = "mov.u32 %r1, smem; mov.u32 %r6, 0;" + ALLOC.format(group=1)
    body += "and.b32 %r22, %r50, 96; shl.b32 %r22, %r22, 16; tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r30}, [%r22];"
    body += "bra NEXT; NEXT: add.u32 %r31, %r30, 1;" + FREE.format(group=1)
    with pytest.raises(SimError, match=r"add\.u32 uses a register of the tcgen05\.ld"):
        run(body, [], block=128, shared=SHARED)


def test_a_use_behind_a_branch_that_is_not_taken_is_refused():
    with pytest.raises(SimError, match=r"add\.u32 uses a register of the tcgen05\.ld"):
        pairs("setp.eq.u32 %p9, %r50, 999; @%p9 bra NEXT; add.u32 %r40, %r30, 1; NEXT:")
    copied = "setp.eq.u32 %p9, %r50, 999; @%p9 bra NEXT; mov.b64 %rd9, {%r30, %r31}; NEXT:"
    np.testing.assert_array_equal(pairs(copied), THREADS)


def test_waits_can_be_assumed():
    used = "add.u32 %r40, %r30, 1; mov.b64 %rd9, {%r40, %r31};"
    np.testing.assert_array_equal(pairs(used, "", assumptions=Assumptions(tensor_waits=True)), THREADS + np.where([True, False], 1, 0))


@pytest.mark.parametrize("assumed", [False, True])
def test_a_load_sees_a_store_that_nobody_waited_for_only_if_waits_are_assumed(assumed):
    again = "tcgen05.wait::ld.sync.aligned; tcgen05.st.sync.aligned.32x32b.x2.b32 [%r22], {%r24, %r50};"
    again += LOAD_TWO + "mov.b64 %rd9, {%r30, %r31};"
    stored = pairs(again, "tcgen05.wait::st.sync.aligned;", assumptions=Assumptions(tensor_waits=assumed))
    np.testing.assert_array_equal(stored, THREADS[:, ::-1] if assumed else THREADS)


def test_dealloc_before_a_commit_that_nobody_waits_for_is_a_warning():
    """The second commit follows work that the first one, which is waited for, has covered."""
    case = Case("f8f6f4", 128, 64, 1)
    case.images[0, SFA_AT : SFA_AT + 2048] = 1
    commit = "@%p5 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [{}];"
    copy = f"""setp.eq.and.u32 %p5, %r6, 0, %p1; add.s32 %r8, %r1, 8; add.s32 %r9, %r1, 24;
    @%p1 mbarrier.init.shared::cta.b64 [%r9], 1;
    mov.b64 %rd10, {SCALE_LAYOUT + (BASE + SFA_AT) // 16}; @%p5 tcgen05.cp.cta_group::1.128x128b [%r3], %rd10;
    {commit.format("%r8")}"""
    trailing = FREE.format(group=1).replace("bar.sync 0;", "bar.sync 0;" + commit.format("%r9"))
    texts = set()
    for seed in range(12):
        _, report = case.run(LOAD_IMAGE + ALLOC.format(group=1) + copy + WAIT_COMMIT + trailing, seed=seed)
        texts |= {re.sub(r"line \d+", "line N", text) for text in report.warnings}
    assert "PTX line N: tcgen05.dealloc before tcgen05.commit has arrived" in texts
    with pytest.raises(SimError, match=r"tcgen05\.dealloc while \d operations"):
        for seed in range(12):
            case.run(LOAD_IMAGE + ALLOC.format(group=1) + copy + FREE.format(group=1), seed=seed)
