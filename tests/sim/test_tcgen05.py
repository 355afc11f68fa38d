"""tcgen05.mma: every kind and layout against numpy, ordering rules and misuse."""

import re

import numpy as np
import pytest
from tcgen05_cases import A_AT, BASE, KINDS, SCALE_LAYOUT, SFA_AT, SFB_AT, SWIZZLE_128, Case, copies

from megamoe_dsl.sim import SimError

LAYOUTS = [(kind, m, n, group) for kind in KINDS for m, n, group in ((128, 64, 1), (256, 96, 2))]
# The scale factors of M = 128 pairs are folded: `test_pair_of_m128_folds_the_b_scales`.
LAYOUTS += [(kind, 128, 128, 2) for kind in KINDS if not kind.startswith("mx")]


@pytest.mark.parametrize(("kind", "m", "n", "group"), LAYOUTS)
def test_kinds_and_layouts(kind, m, n, group):
    case = Case(kind, m, n, group)
    result, report = case.run()
    np.testing.assert_array_equal(result, case.expected.astype(np.float32))
    assert report.findings == []
    assert all("tcgen05.ld of uninitialised" in text for text in report.warnings)


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


@pytest.mark.parametrize("seed", range(4))
def test_schedules_do_not_matter(seed):
    case = Case("mxf8f6f4", 256, 192, 2, seed=seed, scale_id=seed)
    result, report = case.run(seed=seed)
    np.testing.assert_array_equal(result, case.expected.astype(np.float32))
    assert report.findings == []


def test_m64_uses_16_lanes_of_every_quarter():
    case = Case("f8f6f4", 64, 40, 1)
    result, _ = case.run()
    np.testing.assert_array_equal(result, case.expected.astype(np.float32))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.replace("setp.eq.u32 %p6, 0, 1;", "setp.eq.u32 %p6, 1, 1;"), "accumulates into uninitialised TMEM"),
        (lambda t: re.sub(r"@%p5 tcgen05.cp[^;]*;", "", t, count=1), "MMA scale factors reads uninitialised TMEM"),
        (lambda t: t.replace("[%r3], %rd11", "[%r3+480], %rd11"), "outside the allocation"),
        (lambda t: t.replace(A_DESCRIPTOR, f"mov.b64 %rd11, {SWIZZLE_128}"), "shared access out of bounds"),
        (lambda t: t.replace(A_DESCRIPTOR, "mov.b64 %rd11, 5"), "version field is 0"),
        (lambda t: re.sub(r"tcgen05.dealloc[^;]*;", "", t), "exited without tcgen05.dealloc of 512 columns"),
        (lambda t: re.sub(r"(tcgen05.dealloc[^;]*), 512", r"\1, 256", t), "tcgen05.dealloc of 256 columns"),
        (lambda t: re.sub(r"(tcgen05.alloc[^;]*), 512", r"\1, 48", t), "alloc of 48 columns"),
        (lambda t: re.sub(r"(tcgen05.alloc[^;]*;)(\s*tcgen05.relinquish[^;]*;)", r"\2\1", t), "after tcgen05.relinquish"),
        (lambda t: t.replace("tcgen05.wait::ld.sync.aligned;", "", 1), "uses a register of this tcgen05.ld before"),
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
