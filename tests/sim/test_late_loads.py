"""Loads that take their values late, and the bug of a stage that is given away before they have (docs/lab/hopper.md)."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_cases import run

from megamoe_dsl.sim import Assumptions, Report

SEEDS = range(6)
STEPS = 6
SHARED = ".shared .align 16 .b8 buf[144];"

# Warp 1 puts step numbers into one word, warp 0 adds them up lane by lane. `full` is at buf + 128, `empty` at buf + 136.
RING = """
mov.u32 %r1, buf; and.b32 %r2, %r50, 31; setp.eq.u32 %p1, %r2, 0; setp.lt.u32 %p2, %r50, 32; mov.u32 %r10, 0; mov.u32 %r11, 0;
setp.eq.u32 %p3, %r50, 0; @%p3 mbarrier.init.shared.b64 [%r1+128], 1; @%p3 mbarrier.init.shared.b64 [%r1+136], {arrivals}; bar.sync 0;
@%p2 bra READ;
WRITE: and.b32 %r3, %r10, 1; xor.b32 %r3, %r3, 1;
WAIT_EMPTY: mbarrier.try_wait.parity.shared.b64 %p4, [%r1+136], %r3; @!%p4 bra WAIT_EMPTY;
add.u32 %r10, %r10, 1; @%p1 st.shared.b32 [%r1], %r10; @%p1 mbarrier.arrive.shared.b64 _, [%r1+128];
setp.lt.u32 %p5, %r10, 6; @%p5 bra WRITE; bra END;
READ: and.b32 %r3, %r10, 1;
WAIT_FULL: mbarrier.try_wait.parity.shared.b64 %p4, [%r1+128], %r3; @!%p4 bra WAIT_FULL;
ld.shared.b32 %r4, [%r1];
{release}
add.u32 %r11, %r11, %r4; add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 6; @%p5 bra READ;
mul.wide.u32 %rd1, %r50, 4; add.s64 %rd1, %rd50, %rd1; st.global.b32 [%rd1], %r11;
END:
"""
ARRIVE = "@%p1 mbarrier.arrive.shared.b64 _, [%r1+136];"
EARLY = f"bar.warp.sync -1; {ARRIVE}"
RIGHT = {
    "barrier.cta": (f"bar.sync 1, 32; {ARRIVE}", 1),
    "every lane arrives": ("mbarrier.arrive.shared.b64 _, [%r1+136];", 32),
    "used before": (f"setp.eq.u32 %p6, %r4, 99; @%p6 trap; bar.warp.sync -1; {ARRIVE}", 1),
}


def ring(release: str, arrivals: int, **options: object) -> tuple[bool, Report]:
    """Whether all lanes have the right sum, and the report."""
    out = np.zeros(32, np.uint32)
    report = run(RING.format(release=release, arrivals=arrivals), [out], block=64, shared=SHARED, **options)  # type: ignore[arg-type]
    return out.tolist() == [sum(range(1, STEPS + 1))] * 32, report


@pytest.mark.parametrize("name", RIGHT)
def test_right_forms_have_no_finding_and_no_late_value(name: str) -> None:
    for seed in SEEDS:
        for late_loads in (False, True):
            right, report = ring(*RIGHT[name], seed=seed, assumptions=Assumptions(late_loads=late_loads))
            assert right
            assert [str(finding) for finding in report.findings] == []


def test_a_warp_barrier_does_not_speak_for_reads_that_nothing_has_used() -> None:
    """Lanes read, the warp meets, one lane arrives: the others' values come late, and the detector says so in any schedule."""
    for seed in SEEDS:
        right, report = ring(EARLY, 1, seed=seed)
        assert right  # a simulator that loads at once shows no wrong value
        (finding,) = report.findings
        assert finding.kind == "WAR race"
        assert finding.first == "rank 0 CTA (0,0,0) warp 0"
        assert finding.second == "rank 0 CTA (0,0,0) warp 1 lane 0"
    assert not all(ring(EARLY, 1, seed=seed, assumptions=Assumptions(late_loads=True))[0] for seed in SEEDS)


def test_seeds_repeat_late_values() -> None:
    def sums(seed: int) -> list[int]:
        out = np.zeros(32, np.uint32)
        run(RING.format(release=EARLY, arrivals=1), [out], block=64, shared=SHARED, seed=seed, assumptions=Assumptions(late_loads=True))
        return out.tolist()

    assert sums(3) == sums(3)


def test_a_lane_s_own_release_waits_for_its_loads() -> None:
    """Every lane takes its word and gives it back by itself; a store of the same warp comes after its loads too."""
    text = """mov.u32 %r1, buf; mad.lo.u32 %r2, %r50, 4, %r1; mul.wide.u32 %rd1, %r50, 4; add.s64 %rd1, %rd50, %rd1;
    st.shared.b32 [%r2], %r50; ld.shared.b32 %r3, [%r2]; st.shared.b32 [%r2], 77; st.global.b32 [%rd1], %r3;"""
    for seed in SEEDS:
        out = np.zeros(32, np.uint32)
        run(text, [out], shared=SHARED, seed=seed, assumptions=Assumptions(late_loads=True))
        assert out.tolist() == list(range(32))


def test_a_store_of_one_lane_comes_after_the_loads_of_all() -> None:
    text = """mov.u32 %r1, buf; setp.eq.u32 %p1, %r50, 0; @%p1 st.shared.b32 [%r1], 7; bar.warp.sync -1;
    ld.shared.b32 %r4, [%r1]; bar.warp.sync -1; @%p1 st.shared.b32 [%r1], 9; bar.warp.sync -1;
    mul.wide.u32 %rd1, %r50, 4; add.s64 %rd1, %rd50, %rd1; st.global.b32 [%rd1], %r4;"""
    for seed in SEEDS:
        out = np.zeros(32, np.uint32)
        run(text, [out], shared=SHARED, seed=seed, assumptions=Assumptions(late_loads=True))
        assert out.tolist() == [7] * 32


def test_a_load_of_some_lanes_lands_in_those_only() -> None:
    text = """mov.u32 %r1, buf; mad.lo.u32 %r2, %r50, 4, %r1; mul.wide.u32 %rd1, %r50, 4; add.s64 %rd1, %rd50, %rd1; mov.u32 %r3, 5;
    st.shared.b32 [%r2], %r50; setp.lt.u32 %p1, %r50, 8; @%p1 ld.shared.b32 %r3, [%r2]; add.u32 %r3, %r3, 100; st.global.b32 [%rd1], %r3;"""
    out = np.zeros(32, np.uint32)
    run(text, [out], shared=SHARED, assumptions=Assumptions(late_loads=True))
    assert out.tolist() == [100 + i for i in range(8)] + [105] * 24
