"""wgmma against numpy: operand types, A from registers, MN-major, accumulation, and the asynchronous rules."""

import re

import numpy as np
import pytest
from ptx_cases import run

from megamoe_dsl.hardware.operand_tile import Swizzle
from megamoe_dsl.sim import SimError, formats
from megamoe_dsl.sim.umma import aligned_multiply_accumulate, alignment_of

A_AT, B_AT, IMAGE = 1024, 9216, 25600
BASE = 1024
SHARED = f".shared .align 1024 .b8 smem[{IMAGE}];"
SWIZZLE_128 = 1 << 62 | 64 << 32 | 1 << 16
LOAD = f"""
mov.u32 %r1, smem;
setp.eq.u32 %p1, %r50, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
bar.sync 0;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {IMAGE - 1024};
add.s32 %r2, %r1, 1024;
@%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd50], {IMAGE - 1024}, [%r1];
W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
@!%p2 bra W;
"""


def operand(name, rows, k_bytes, rng):
    if name in ("e4m3", "e5m2"):
        raw = rng.integers(0, 0x70, (rows, k_bytes)).astype(np.uint8)
        return raw, (formats.E4M3 if name == "e4m3" else formats.E5M2)[raw]
    values = rng.integers(-8, 9, (rows, k_bytes // 2)).astype(np.float32)
    raw16 = values.astype(np.float16).view(np.uint16) if name == "f16" else (values.view(np.uint32) >> 16).astype(np.uint16)
    return raw16.view(np.uint8), values.astype(np.float64)


def image_of(a, b):
    store = np.zeros(IMAGE + 16, np.uint8)
    start = -store.ctypes.data % 16
    image = store[start : start + IMAGE - 1024]
    for at, raw in ((A_AT, a), (B_AT, b)):
        where = np.arange(len(raw))[:, None] * 128 + np.arange(raw.shape[1])
        image[Swizzle(128)(BASE + at + where) - BASE - 1024] = raw
    return image


def registers(n):
    return [f"%a{i}" for i in range(n // 2)]


def save(n):
    """Every thread stores its registers; see `matrix` for the way back."""
    text = f"mul.wide.u32 %rd5, %r50, {2 * n}; add.s64 %rd6, %rd51, %rd5;\n"
    return text + "".join(f"st.global.f32 [%rd6+{4 * i}], {r};\n" for i, r in enumerate(registers(n)))


def matrix(out, n):
    """Register 4j + 2h + q of thread t of warp w is row 16w + t / 4 + 8h, column 8j + 2 (t % 4) + q."""
    result = np.zeros((64, n), np.float32)
    thread = np.arange(128)
    for index in range(n // 2):
        j, h, q = index // 4, index // 2 % 2, index % 2
        result[16 * (thread // 32) + thread % 32 // 4 + 8 * h, 8 * j + 2 * (thread % 4) + q] = out.reshape(128, n // 2)[:, index]
    return result


def mma(n, types, step, accumulate, a=None, trailing=""):
    k = 32 if types[0] in ("e4m3", "e5m2") else 16
    a = a or "%rd11"
    return f"""
    mov.b64 %rd11, {SWIZZLE_128 + (BASE + A_AT + 32 * step) // 16};
    mov.b64 %rd12, {SWIZZLE_128 + (BASE + B_AT + 32 * step) // 16};
    setp.eq.u32 %p6, {int(accumulate)}, 1;
    wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{types[0]}.{types[1]} {{{", ".join(registers(n))}}}, {a}, %rd12, %p6, 1, 1{trailing};
    """


def body_of(n, types, trailing=""):
    steps = "".join(mma(n, types, step, step > 0, trailing=trailing) for step in range(4))
    return LOAD + "wgmma.fence.sync.aligned;\n" + steps + "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" + save(n)


def execute(body, image, n, **options):
    out = np.zeros(64 * n, np.float32)
    declared = f".reg .f32 %a<{n // 2}>;"
    report = run(body, [image, out], block=128, shared=SHARED, declarations=declared, **options)
    return matrix(out, n), report


@pytest.mark.parametrize("types", [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("f16", "f16"), ("bf16", "bf16")])
@pytest.mark.parametrize(("n", "race"), [(8, False), (64, True), (128, True)])
def test_products(types, n, race):
    rng = np.random.default_rng(n)
    (a_raw, a), (b_raw, b) = operand(types[0], 64, 128, rng), operand(types[1], n, 128, rng)
    result, report = execute(body_of(n, types, "" if "m" in types[0] else ", 0, 0"), image_of(a_raw, b_raw), n, seed=n, race=race)
    expected = np.zeros((64, n), np.float32)
    k = a.shape[1] // 4
    for step in range(4):
        part = slice(step * k, step * k + k)
        expected = aligned_multiply_accumulate(a[:, part], b[:, part], expected, alignment_of(*types))
    np.testing.assert_array_equal(result, expected)
    assert (report.findings, dict(report.warnings)) == ([], {})


def test_a_from_registers_and_negated_b():
    n, rng = 16, np.random.default_rng(5)
    (a_raw, a), (b_raw, b) = operand("e4m3", 64, 32, rng), operand("e4m3", n, 32, rng)
    # thread t of warp w loads register h + 2g: 4 bytes at row 16w + t/4 + 8h, byte 16g + 4 (t % 4), from an unswizzled copy
    image = image_of(np.zeros((64, 32), np.uint8), b_raw)
    image[:2048] = a_raw.reshape(-1)
    body = (
        LOAD
        + """
    shr.u32 %r10, %r50, 5; shl.b32 %r10, %r10, 4;
    and.b32 %r11, %r50, 31; shr.u32 %r11, %r11, 2; add.s32 %r10, %r10, %r11; shl.b32 %r10, %r10, 5;
    and.b32 %r11, %r50, 3; shl.b32 %r11, %r11, 2; add.s32 %r10, %r10, %r11; add.s32 %r10, %r10, %r2;
    ld.shared.u32 %r20, [%r10]; ld.shared.u32 %r21, [%r10+256]; ld.shared.u32 %r22, [%r10+16]; ld.shared.u32 %r23, [%r10+272];
    wgmma.fence.sync.aligned;
    """
    )
    body += mma(n, ("e4m3", "e4m3"), 0, False, "{%r20, %r21, %r22, %r23}").replace("%p6, 1, 1", "%p6, 1, -1")
    body += "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" + save(n)
    result, report = execute(body, image, n)
    np.testing.assert_array_equal(result, -aligned_multiply_accumulate(a, b, None, alignment_of("e4m3", "e4m3")))
    assert not report.findings


def test_mn_major_b():
    n, rng = 64, np.random.default_rng(6)
    (a_raw, a), (b_raw, b) = operand("f16", 64, 32, rng), operand("f16", 16, 128, rng)  # b: 16 of K, 64 of N contiguous
    body = LOAD + "wgmma.fence.sync.aligned;\n" + mma(n, ("f16", "f16"), 0, False, trailing=", 0, 1")
    body += "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" + save(n)
    result, _ = execute(body, image_of(a_raw, b_raw), n)
    np.testing.assert_array_equal(result, (a @ b).astype(np.float32))


def small_case():
    rng = np.random.default_rng(7)
    (a_raw, _), (b_raw, _) = operand("e4m3", 64, 128, rng), operand("e4m3", 8, 128, rng)
    return body_of(8, ("e4m3", "e4m3")), image_of(a_raw, b_raw)


def test_accumulators_hold_poison_before_the_wait():
    body, image = small_case()
    result, _ = execute(body.replace("wgmma.wait_group.sync.aligned 0;", ""), image, 8)
    assert np.isnan(result).all()
    kept, _ = execute(body.replace("wait_group.sync.aligned 0", "wait_group.sync.aligned 1"), image, 8)
    assert np.isnan(kept).all()


def test_missing_fence_is_an_error():
    body, image = small_case()
    with pytest.raises(SimError, match=r"without wgmma.fence"):
        execute(body.replace("wgmma.fence.sync.aligned;", ""), image, 8)


def test_writing_an_accumulator_in_flight_is_an_error():
    body, image = small_case()
    with pytest.raises(SimError, match="written while wgmma was in flight"):
        execute(body.replace("wgmma.commit_group", "mov.b32 %a1, 0f00000000;\nwgmma.commit_group"), image, 8)


@pytest.mark.parametrize(("fence", "missing"), [("", True), ("fence.proxy.async.shared::cta;", False)])
def test_what_threads_wrote_needs_a_proxy_fence(fence, missing):
    body, image = small_case()
    write = f"@%p1 st.shared.u32 [%r2], 0;\n@%p1 {fence or 'bar.warp.sync 1;'}\nbar.sync 0;\n"
    kinds = {f.kind for f in execute(body.replace("wgmma.fence", write + "wgmma.fence", 1), image, 8)[1].findings}
    assert kinds == ({"missing fence.proxy.async before async-proxy read"} if missing else set())


def test_overwriting_operands_before_the_wait_is_a_race():
    body, image = small_case()
    write = "bar.sync 0;\n@%p1 st.shared.u32 [%r2], 0;\n"
    early = body.replace("wgmma.wait_group", write + "wgmma.wait_group")
    late = re.sub(r"(wgmma.wait_group[^;]*;)", r"\1" + write.replace("\\", r"\\"), body)
    kinds = {name: set() for name in ("early", "late")}
    for seed in range(6):
        for name, text in (("early", early), ("late", late)):
            kinds[name] |= {f.kind for f in execute(text, image, 8, seed=seed)[1].findings}
    assert kinds["late"] == set()
    assert kinds["early"] & {"WAR race", "RAW race", "missing fence.proxy.async before async-proxy read"}


@pytest.mark.parametrize("seed", range(6))
def test_one_warp_may_overwrite_a_after_its_own_wait(seed):
    """An operation is done for the whole warpgroup when it is done for a warp: all have issued it then."""
    n, rng = 8, np.random.default_rng(8)
    (a_raw, a), (b_raw, b) = operand("f16", 64, 128, rng), operand("f16", n, 128, rng)
    late = "shr.u32 %r12, %r50, 5; SPIN: sub.s32 %r12, %r12, 1; nanosleep.u32 20; setp.ge.s32 %p7, %r12, 0; @%p7 bra SPIN;\n"
    store = """setp.ge.u32 %p3, %r50, 32; @%p3 bra STORED; mad.lo.u32 %r10, %r50, 256, %r2; mov.u32 %r11, 0;
    MORE: st.shared.u32 [%r10], 0xffffffff; add.u32 %r10, %r10, 4; add.u32 %r11, %r11, 1; setp.lt.u32 %p3, %r11, 64; @%p3 bra MORE;
    STORED:\n"""
    body = (
        body_of(n, ("f16", "f16"), ", 0, 0")
        .replace("wgmma.fence", late + "wgmma.fence")
        .replace("wait_group.sync.aligned 0;", "wait_group.sync.aligned 0;" + store)
    )
    result, report = execute(body, image_of(a_raw, b_raw), n, seed=seed)
    np.testing.assert_array_equal(result, (a @ b.T).astype(np.float32))
    assert report.findings == []


def test_every_warp_must_know_that_b_is_there():
    """Warp 3 does not wait for the copy; the others do, so that the values are right."""
    body, image = small_case()
    body = body.replace("W: mbarrier", "setp.ge.u32 %p8, %r50, 96; @%p8 bra GO;\nW: mbarrier", 1).replace(
        "@!%p2 bra W;", "@!%p2 bra W;\nGO:", 1
    )
    _, report = execute(body, image, 8)
    assert {f.kind for f in report.findings} == {"RAW race"}
    assert all(f.second.endswith("warpgroup 0 wgmma") for f in report.findings)


def test_a_warpgroup_has_four_warps():
    body, image = small_case()
    with pytest.raises(SimError, match=r"warpgroup 0 of a CTA of 3 warps"):
        run(body, [image, np.zeros(512, np.float32)], block=96, shared=SHARED, declarations=".reg .f32 %a<4>;")


def test_an_operation_that_a_warp_left_out_is_an_error():
    body, image = small_case()
    left = "setp.ge.u32 %p8, %r50, 96; @%p8 bra OUT;\nwgmma.fence"
    body = body.replace("wgmma.fence", left, 1).replace("wgmma.wait_group.sync.aligned 0;", "OUT:")
    with pytest.raises(SimError, match=r"warpgroup 0: wgmma.mma_async at PTX line \d+ issued by 3 of 4 warps"):
        execute(body, image, 8)


@pytest.mark.parametrize("types", [("f16", "f16"), ("e4m3", "e5m2")])
def test_half_accumulators(types):
    """Two columns in every register; rounded to FP16 after every instruction."""
    n, rng = 16, np.random.default_rng(9)
    (a_raw, a), (b_raw, b) = operand(types[0], 64, 128, rng), operand(types[1], n, 128, rng)
    a_raw, a = a_raw.copy(), a.copy()
    body = body_of(n, types, "" if "m" in types[0] else ", 0, 0").replace(".f32." + types[0], ".f16." + types[0])
    body = body.replace(", ".join(registers(n)), ", ".join(registers(n)[: n // 4])).replace("st.global.f32", "st.global.b32")
    out = np.zeros(64 * n, np.uint32)
    run(body, [image_of(a_raw, b_raw), out], block=128, shared=SHARED, declarations=f".reg .b32 %a<{n // 2}>;")
    words = np.ascontiguousarray(out.reshape(128, n // 2)[:, : n // 4]).view(np.float16).reshape(128, n // 8, 2, 2)
    result, thread = np.zeros((64, n), np.float16), np.arange(128)
    for j, h, q in np.ndindex(n // 8, 2, 2):
        result[16 * (thread // 32) + thread % 32 // 4 + 8 * h, 8 * j + 2 * (thread % 4) + q] = words[:, j, h, q]
    expected, k = np.zeros((64, n)), a.shape[1] // 4
    with np.errstate(over="ignore"):
        for step in range(4):
            product = a[:, step * k : step * k + k] @ b[:, step * k : step * k + k].T
            expected = (product + expected).astype(np.float16).astype(np.float64)
    np.testing.assert_array_equal(result, expected.astype(np.float16))


@pytest.mark.parametrize(("types", "saturate"), [(("s8", "s8"), False), (("u8", "s8"), False), (("u8", "u8"), True)])
def test_integers(types, saturate):
    n, rng = 16, np.random.default_rng(10)
    raw = [rng.integers(0, 256, (rows, 128)).astype(np.uint8) for rows in (64, n)]
    a, b = (one.view({"s8": np.int8, "u8": np.uint8}[name]).astype(np.int64) for one, name in zip(raw, types, strict=True))
    body = body_of(n, types).replace("k16.f32.", f"k32{'.satfinite' if saturate else ''}.s32.").replace("%rd12, %p6, 1, 1", "%rd12, %p6")
    start = 2**31 - 100 if saturate else 1000
    body = body.replace("wgmma.fence", "".join(f"mov.b32 {r}, {start};" for r in registers(n)) + "\nwgmma.fence", 1)
    body = body.replace("setp.eq.u32 %p6, 0, 1;", "setp.eq.u32 %p6, 1, 1;")
    out = np.zeros(64 * n, np.uint32)
    run(
        body.replace("st.global.f32", "st.global.b32"),
        [image_of(*raw), out],
        block=128,
        shared=SHARED,
        declarations=f".reg .b32 %a<{n // 2}>;",
    )
    total = a @ b.T + start
    result = matrix(out.view(np.int32).astype(np.float64), n)
    expected = np.minimum(total, 2**31 - 1) if saturate else total
    np.testing.assert_array_equal(result, expected.astype(np.float32))
