"""tcgen05.mma: every kind and layout against numpy, ordering rules and misuse."""

import re

import numpy as np
import pytest
from tcgen05_cases import (
    A_AT,
    ALLOC,
    BASE,
    DUMP,
    FREE,
    KINDS,
    LOAD_IMAGE,
    SCALE_LAYOUT,
    SFA_AT,
    SFB_AT,
    SWIZZLE_128,
    WAIT_COMMIT,
    Case,
    copies,
)  # fmt: skip

from megamoe_dsl.sim import Assumptions, SimError
from megamoe_dsl.sim.umma import multiply_accumulate

LAYOUTS = [(kind, m, n, group) for kind in KINDS for m, n, group in ((128, 64, 1), (256, 96, 2))]
LAYOUTS.append(("f16", 128, 8, 1))
# The scale factors of M = 128 pairs are folded: `test_pair_of_m128_folds_the_b_scales`.
LAYOUTS += [(kind, 128, 128, 2) for kind in KINDS if not kind.startswith("mx")]


@pytest.mark.parametrize(("kind", "m", "n", "group"), LAYOUTS)
def test_kinds_and_layouts(kind, m, n, group):
    case = Case(kind, m, n, group)
    result, report = case.run()
    result = result.view(np.int32) if kind == "i8" else result
    np.testing.assert_array_equal(result, case.expected.astype(result.dtype))
    assert report.findings == []
    assert all("tcgen05.ld of uninitialized" in text for text in report.warnings)


A_DESCRIPTOR = f"mov.b64 %rd11, {SWIZZLE_128 + (BASE + A_AT) // 16}"


class FoldedCase(Case):
    """M = 128 over a pair: the B scales of the second half of N go to lane quarters 2 and 3, at the columns of the first half."""

    def __post_init__(self):
        super().__post_init__()
        for image in self.images:
            image[SFB_AT : SFB_AT + 64 * 16].reshape(64, 16)[:, :4] = self.scales[1]

    def scale_copies(self):
        rows = f"mov.b64 %rd10, {SCALE_LAYOUT + (BASE + SFB_AT) // 16}; add.s32 %r10, %r3, 264;"
        return copies(1, 256, SFA_AT, 2) + rows + "@%p5 tcgen05.cp.cta_group::2.64x128b.warpx2::01_23 [%r10], %rd10;"


def test_pair_of_m128_folds_the_b_scales():
    case = FoldedCase("mxf8f6f4", 128, 64, 2)
    result, report = case.run()
    np.testing.assert_array_equal(result, case.expected.astype(np.float32))
    assert report.findings == []


@pytest.mark.parametrize(("seed", "race"), [(0, True), (1, True), (2, True), (3, False)])
def test_schedules_do_not_matter(seed, race):
    case = Case("mxf8f6f4", 256, 192, 2, seed=seed, scale_id=seed)
    result, report = case.run(seed=seed, race=race)
    np.testing.assert_array_equal(result, case.expected.astype(np.float32))
    assert report.findings == []


def test_m64_uses_16_lanes_of_every_quarter():
    case = Case("f8f6f4", 64, 40, 1)
    result, _ = case.run()
    np.testing.assert_array_equal(result, case.expected.astype(np.float32))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.replace("setp.eq.u32 %p6, 0, 1;", "setp.eq.u32 %p6, 1, 1;"), "accumulates into uninitialized TMEM"),
        (lambda t: re.sub(r"@%p5 tcgen05.cp[^;]*;", "", t, count=1), "MMA scale factors reads uninitialized TMEM"),
        (lambda t: t.replace("[%r3], %rd11", "[%r3+480], %rd11"), "outside the allocation"),
        (lambda t: t.replace(A_DESCRIPTOR, f"mov.b64 %rd11, {SWIZZLE_128}"), "shared access out of bounds"),
        (lambda t: t.replace(A_DESCRIPTOR, "mov.b64 %rd11, 5"), "version field is 0"),
        (lambda t: re.sub(r"tcgen05.dealloc[^;]*;", "", t), "exited without tcgen05.dealloc of 512 columns"),
        (lambda t: re.sub(r"(tcgen05.dealloc[^;]*), 512", r"\1, 256", t), "tcgen05.dealloc of 256 columns"),
        (lambda t: re.sub(r"(tcgen05.alloc[^;]*), 512", r"\1, 48", t), "alloc of 48 columns"),
        (lambda t: re.sub(r"(tcgen05.alloc[^;]*;)(\s*tcgen05.relinquish[^;]*;)", r"\2\1", t), "after tcgen05.relinquish"),
        (lambda t: t.replace("tcgen05.wait::ld.sync.aligned;", "", 1), "uses a register of the tcgen05.ld"),
        (lambda t: t.replace("and.b32 %r22, %r50, 96;", "mov.b32 %r22, 32;"), "reaches lanes 0 to 31 only|reaches lanes"),
    ],
)
def test_misuse_is_an_error(edit, message):
    case = Case("mxf8f6f4", 128, 64, 1)
    with pytest.raises(SimError, match=message):
        case.run(edit(case.body()))


@pytest.mark.parametrize(
    ("edit", "kind"),
    [
        (lambda t: re.sub(r"W1:.*?bra W1;", "", t, flags=re.S), "RAW race"),
        (lambda t: t.replace("@!%p2 bra W1;\ntcgen05.fence::after_thread_sync;", "@!%p2 bra W1;"), "RAW race"),
    ],
)
def test_missing_ordering_is_found(edit, kind):
    case = Case("f8f6f4", 128, 64, 1)
    body = edit(case.body())
    assert body != case.body()
    kinds = set()
    for seed in range(4):
        try:
            kinds |= {finding.kind for finding in case.run(body, seed=seed)[1].findings}
        except SimError as error:
            assert "in flight" in str(error)  # dealloc while the pipe works
    assert kind in kinds or "WAR race" in kinds


def test_generic_writes_need_a_proxy_fence_before_the_mma():
    case = Case("f8f6f4", 128, 64, 1)
    write = f"@%p1 st.shared.u8 [%r1+{A_AT}], {int(case.images[0, A_AT])};\n"
    fenced, unfenced = (
        {f.kind for f in case.run(case.body().replace("setp.eq.and.u32 %p5", write + fence + "setp.eq.and.u32 %p5"))[1].findings}
        for fence in ("fence.proxy.async.shared::cta;\n", "")
    )
    assert fenced == set()
    assert unfenced == {"missing fence.proxy.async before async-proxy read"}


def kinds_of(body, **options):
    found = set()
    for seed in range(6):
        result, report = COPIED.run(body, seed=seed, **options)
        assert (result.view(np.uint32) == 7).all()
        found |= {f.kind for f in report.findings if "tmem" in f.where}
    return found


COPIED = Case("f8f6f4", 128, 64, 1)
COPIED.images[0, SFA_AT : SFA_AT + 2048] = np.full(512, 7, np.uint32).view(np.uint8)
COPIED.n = 4
COPY = f"mov.b64 %rd10, {SCALE_LAYOUT + (BASE + SFA_AT) // 16}; @%p1 tcgen05.cp.cta_group::1.128x128b [%r3], %rd10;"
COMMIT = "add.s32 %r8, %r1, 8; @%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r8];"
RELAXED_WAIT = WAIT_COMMIT.replace("try_wait.parity.", "try_wait.parity.relaxed.cluster.")
START, END = LOAD_IMAGE + ALLOC.format(group=1), DUMP + FREE.format(group=1)


def test_a_relaxed_wait_and_the_fence_order_a_load():
    """PTX ISA, "Canonical synchronization patterns": mma or cp, commit, try_wait.relaxed, fence::after_thread_sync, ld."""
    assert kinds_of(START + COPY + COMMIT + RELAXED_WAIT + END) == set()
    without = RELAXED_WAIT.replace("tcgen05.fence::after_thread_sync;", "")
    assert kinds_of(START + COPY + COMMIT + without + END) == {"RAW race"}


def test_fences_can_be_assumed():
    """An acquiring wait without the fence is a finding, unless the run assumes fences; a missing wait stays one."""
    without = WAIT_COMMIT.replace("tcgen05.fence::after_thread_sync;", "")
    assert kinds_of(START + COPY + COMMIT + without + END) == {"RAW race"}
    assert kinds_of(START + COPY + COMMIT + without + END, assumptions=Assumptions(tensor_fences=True)) == set()


@pytest.mark.parametrize(("before", "after", "expected"), [(True, True, set()), (False, True, {"WAR race"}), (True, False, {"WAR race"})])
def test_a_relaxed_arrive_and_the_fences_order_a_copy_after_a_load(before, after, expected):
    """ld, wait::ld, fence::before_thread_sync, arrive.relaxed; then in another warp try_wait.relaxed, fence::after_thread_sync, cp."""
    load = "and.b32 %r22, %r50, 96; shl.b32 %r22, %r22, 16; add.s32 %r22, %r22, %r3; tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r30}, [%r22];"
    fences = ["tcgen05.fence::before_thread_sync;" if before else "", "tcgen05.fence::after_thread_sync;" if after else ""]
    again = f"""{load} tcgen05.wait::ld.sync.aligned; {fences[0]}
    mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [%r1+24];
    @!%p1 bra WAITED;
    W2: mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p2, [%r1+24], 0; @!%p2 bra W2;
    {fences[1]} {COPY} {COMMIT}
    WAITED:
    """
    start = START.replace("bar.sync 0;", "@%p1 mbarrier.init.shared::cta.b64 [%r1+24], 128; bar.sync 0;", 1)
    last = RELAXED_WAIT.replace("W1", "W3").replace("[%r1+8], 0", "[%r1+8], 1")
    assert kinds_of(start + COPY + COMMIT + RELAXED_WAIT + again + last + END) == expected


@pytest.mark.parametrize("kind", ["f16", "f8f6f4"])
def test_half_accumulators_have_the_low_half_of_a_column(kind):
    case = Case(kind, 128, 64, 1)
    case.descriptor &= ~(3 << 4)
    result, report = case.run()
    halves = result.view(np.uint32).astype(np.uint16).view(np.float16)
    with np.errstate(over="ignore"):
        once = (case.expected / 2).astype(np.float16)
        np.testing.assert_array_equal(halves, (once.astype(np.float64) + case.expected / 2).astype(np.float16))
    assert report.findings == []


def test_integer_accumulators_saturate_when_told():
    case = Case("i8", 128, 64, 1)
    case.descriptor |= 1 << 3
    result, _ = case.run()
    np.testing.assert_array_equal(result.view(np.int32), case.expected.astype(np.int32))
    near = np.full((128, 64), 2**31 - 5, np.int32)
    ones = np.ones((128, 32)), np.ones((64, 32))
    assert (multiply_accumulate(*ones, near, np.int32, saturate=True) == 2**31 - 1).all()
    assert (multiply_accumulate(*ones, near, np.int32) == -(2**31) + 27).all()


def test_an_accumulator_type_of_another_kind_is_an_error():
    case = Case("tf32", 128, 64, 1)
    case.descriptor &= ~(3 << 4)
    with pytest.raises(SimError, match="accumulator type 0; kind::tf32 has 1 f32"):
        case.run()
