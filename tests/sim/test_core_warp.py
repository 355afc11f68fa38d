"""Warp instructions, divergence and barriers."""

import numpy as np
import pytest
from ptx_cases import lanes, run

from megamoe_dsl.sim import Deadlock, SimError

L = np.arange(32, dtype=np.uint32)


def test_shuffles():
    value = L * 10
    assert lanes("shfl.sync.idx.b32 %r3, %r1, 5, 31, -1;", value, result="%r3", dtype=np.uint32).tolist() == [50] * 32
    assert lanes("shfl.sync.bfly.b32 %r3, %r1, 4, 31, -1;", value, result="%r3", dtype=np.uint32).tolist() == ((L ^ 4) * 10).tolist()
    up = lanes("shfl.sync.up.b32 %r3|%p1, %r1, 2, 0, -1; selp.b32 %r3, %r3, 7, %p1;", value, result="%r3", dtype=np.uint32)
    assert up.tolist() == [7, 7] + [10 * (i - 2) for i in range(2, 32)]
    # width 8: clamp 31, segment mask 0x18 in bits 8-12
    down = lanes(f"shfl.sync.down.b32 %r3, %r1, 1, {0x18 << 8 | 31}, -1;", value, result="%r3", dtype=np.uint32)
    assert down.tolist() == [10 * (i if i % 8 == 7 else i + 1) for i in range(32)]


def test_votes_match_and_redux():
    odd = "and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 1;"
    assert lanes(odd + "vote.sync.ballot.b32 %r3, %p1, -1;", L, result="%r3", dtype=np.uint32)[0] == 0xAAAAAAAA
    got = lanes(odd + "vote.sync.any.pred %p2, !%p1, -1; vote.sync.all.pred %p3, %p1, -1; selp.b32 %r3, 1, 0, %p2; selp.b32 %r4, 2, 0, %p3;"
                      "or.b32 %r3, %r3, %r4;", L, result="%r3", dtype=np.uint32)  # fmt: skip
    assert got[0] == 1
    assert lanes("match.any.sync.b32 %r3, %r1, -1;", L % 2, result="%r3", dtype=np.uint32)[:2].tolist() == [0x55555555, 0xAAAAAAAA]
    assert lanes("redux.sync.add.s32 %r3, %r1, -1;", L, result="%r3", dtype=np.uint32).tolist() == [496] * 32
    assert lanes("redux.sync.min.s32 %r3, %r1, -1;", L - np.uint32(5), result="%r3", dtype=np.int32)[0] == -5
    assert lanes("redux.sync.max.f32 %f3, %r1, -1;", L.astype(np.float32), result="%f3", dtype=np.float32)[0] == 31
    assert lanes("activemask.b32 %r3;", L, result="%r3", dtype=np.uint32)[0] == 0xFFFFFFFF


def test_elect_picks_one_lane_and_diverged_lanes_reconverge():
    text = """elect.sync %r2|%p1, -1; mov.b32 %r3, 0; @!%p1 bra SKIP; add.u32 %r3, %r3, 5;
    SKIP: shfl.sync.idx.b32 %r4, %r3, 0, 31, -1; add.u32 %r3, %r3, %r4;"""
    assert lanes(text, L, result="%r3", dtype=np.uint32).tolist() == [10] + [5] * 31


def test_loops_with_different_trip_counts():
    text = "mov.b32 %r2, 0; LOOP: setp.ge.u32 %p1, %r2, %r1; @%p1 bra DONE; add.u32 %r2, %r2, 1; bra LOOP; DONE: activemask.b32 %r3;"
    assert lanes(text + "mov.b32 %r4, %r2;", L, result="%r4", dtype=np.uint32).tolist() == L.tolist()
    assert lanes(text, L, result="%r3", dtype=np.uint32).tolist() == [0xFFFFFFFF] * 32


@pytest.mark.parametrize("seed", range(4))
def test_lanes_that_spin_on_other_lanes_of_their_warp_make_progress(seed):
    """A lock taken lane by lane: lanes at a lower counter wait for lanes at a higher one."""
    cells = np.zeros(2, np.uint32)
    text = """
    SPIN: atom.acquire.gpu.global.cas.b32 %r1, [%rd50], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra SPIN;
    ld.global.b32 %r2, [%rd50+4]; add.u32 %r2, %r2, 1; st.global.b32 [%rd50+4], %r2; st.release.gpu.global.b32 [%rd50], 0;
    """
    report = run(text, [cells], block=64, seed=seed)
    assert cells.tolist() == [0, 64]
    assert report.findings == []


def test_halves_of_a_warp_have_member_masks_of_their_own():
    """After a branch that not all lanes take; each half exchanges among itself."""
    text = """and.b32 %r2, %r1, 16; mov.b32 %r3, 65535; shl.b32 %r4, %r3, %r2; mov.b32 %r5, %r1; and.b32 %r6, %r1, 15;
    setp.ne.u32 %p1, %r6, 0; @%p1 bra SKIP; add.u32 %r5, %r5, 100;
    SKIP: shfl.sync.bfly.b32 %r7, %r5, 8, 31, %r4;"""
    expected = [(lane ^ 8) + 100 * (lane % 16 == 8) for lane in range(32)]
    assert lanes(text, L, result="%r7", dtype=np.uint32).tolist() == expected


def test_a_lane_that_its_own_mask_does_not_name_is_an_error():
    """Although another lane's mask names it."""
    text = "setp.eq.u32 %p1, %r1, 7; @%p1 exit; setp.gt.u32 %p1, %r1, 15; selp.b32 %r2, 65535, -1, %p1; "
    with pytest.raises(SimError, match="does not name it"):
        lanes(text + "shfl.sync.bfly.b32 %r3, %r1, 8, 31, %r2;", L, result="%r3", dtype=np.uint32)


def test_a_lane_outside_the_member_mask_is_an_error():
    with pytest.raises(SimError, match="does not name it"):
        run("setp.lt.u32 %p1, %r50, 8; @%p1 bar.warp.sync 3;", [np.zeros(1, np.uint32)])


PRODUCE = """
mov.b32 %r1, buf; mov.u32 %r50, %tid.x; mad.lo.u32 %r2, %r50, 4, %r1; setp.lt.u32 %p1, %r50, 64; @!%p1 bra CONSUMER;
st.shared.b32 [%r2], %r50; {arrive} bra END;
CONSUMER: {wait} ld.shared.b32 %r3, [%r2+-256]; mad.wide.u32 %rd1, %r50, 4, %rd50; st.global.b32 [%rd1+-256], %r3;
END:
"""
SHARED = ".shared .align 16 .b8 buf[512];"


@pytest.mark.parametrize("prefix", ["bar", "barrier.cta"])
def test_named_barriers_with_arrive_and_count(prefix):
    out = np.zeros(64, np.uint32)
    text = PRODUCE.format(arrive=f"{prefix}.arrive 3, 128;", wait=f"{prefix}.sync 3, 128;")
    report = run(text, [out], block=128, shared=SHARED)
    assert out.tolist() == list(range(64))
    assert report.findings == []


def test_barrier_reduction():
    out = np.zeros(64, np.uint32)
    text = """setp.lt.u32 %p1, %r50, 40; barrier.cta.red.popc.aligned.u32 %r1, 1, 64, %p1; bar.red.or.pred %p2, 2, %p1;
    selp.b32 %r2, 100, 0, %p2; add.u32 %r1, %r1, %r2; mad.wide.u32 %rd1, %r50, 4, %rd50; st.global.b32 [%rd1], %r1;"""
    run(text, [out], block=64)
    assert out.tolist() == [140] * 64


def test_exited_warps_do_not_hold_up_a_barrier():
    out = np.zeros(1, np.uint32)
    run("setp.ge.u32 %p1, %r50, 64; @%p1 exit; bar.sync 0; setp.eq.u32 %p2, %r50, 0; @%p2 st.global.b32 [%rd50], 3;", [out], block=128)
    assert out[0] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("setp.lt.u32 %p1, %r50, 32; @%p1 bar.sync 1, 64;", r"barrier 1: 32/64 threads arrived"),
        ("SPIN: ld.acquire.sys.global.b32 %r1, [%rd50]; setp.eq.u32 %p1, %r1, 0; @%p1 bra SPIN;", r"ld\.acquire\.sys\.global|setp|bra"),
        ("setp.lt.u32 %p1, %r50, 4; @%p1 bra A; bar.warp.sync -1; A:", r"bar\.warp\.sync, 28 lanes; waits on lanes of member mask"),
        ("barrier.cluster.arrive; barrier.cluster.wait; bar.sync 3, 96;",
         r"barrier 3: 64/96 threads"),
    ],
)  # fmt: skip
def test_deadlocks_and_livelocks_are_reported(text, message):
    if "A:" in text:
        text = text.replace("A:", "A: setp.ge.u32 %p2, %r50, 0; @%p2 bar.sync 4, 96;")
    with pytest.raises(Deadlock, match=message) as error:
        run(text, [np.zeros(1, np.uint32)], block=64)
    assert "warp 0" in str(error.value)
    assert "PTX line" in str(error.value)


def test_barrier_misuse_is_an_error():
    with pytest.raises(SimError, match="multiple of 32"):
        run("bar.sync 1, 33;", [np.zeros(1, np.uint32)])
    with pytest.raises(SimError, match="earlier arrivals expect"):
        run("setp.lt.u32 %p1, %r50, 32; @%p1 bar.arrive 1, 96; @!%p1 bar.arrive 1, 64;", [np.zeros(1, np.uint32)], block=64)


def test_special_registers_and_the_clock():
    raw = np.zeros(64 * 8 * 4 + 32, np.uint8)
    out = raw[-raw.ctypes.data % 32 :][: 64 * 32].view(np.uint32).reshape(64, 8)
    text = """
    mov.u32 %r1, %laneid; mov.u32 %r2, %warpid; mov.u32 %r3, %ntid.x; mov.u32 %r4, %ctaid.x; mov.u32 %r5, %cluster_ctarank;
    mov.u64 %rd1, %clock64; mov.u32 %r8, 0; LOOP: add.u32 %r8, %r8, 1; setp.lt.u32 %p1, %r8, 900; @%p1 bra LOOP; mov.u64 %rd2, %clock64;
    setp.gt.u64 %p2, %rd2, %rd1; selp.b32 %r6, 1, 0, %p2; mov.u32 %r7, %lanemask_lt; mov.u32 %r9, %nctaid.x;
    mad.lo.u32 %r10, %r4, 32, %r50; mad.wide.u32 %rd3, %r10, 32, %rd50; st.global.v8.b32 [%rd3], {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r9};
    """
    run(text, [out], grid=2, cluster=2)
    for i, row in enumerate(out.tolist()):
        assert row == [i % 32, 0, 32, i // 32, i // 32, 1, (1 << i % 32) - 1, 2]


@pytest.mark.parametrize("seed", range(40))
def test_parts_of_a_warp_arrive_once_at_a_barrier_that_is_not_aligned(seed):
    """The halves of each warp come to it one after the other, and meet there while other warps are on their way."""
    text = """mov.u32 %r1, buf; mad.lo.u32 %r2, %r50, 4, %r1; and.b32 %r3, %r50, 16; setp.eq.u32 %p1, %r3, 0; mov.u32 %r5, 0;
    @%p1 bra STORE;
    mov.u32 %r4, %r50;
    SPIN: sub.u32 %r4, %r4, 1; nanosleep.u32 20; setp.ne.u32 %p2, %r4, 0; @%p2 bra SPIN;
    STORE: st.shared.b32 [%r2], %r50;
    barrier.sync 0, 96; xor.b32 %r6, %r50, 31; mad.lo.u32 %r6, %r6, 4, %r1; ld.shared.b32 %r7, [%r6];
    mul.wide.u32 %rd1, %r50, 4; add.s64 %rd1, %rd50, %rd1; st.global.b32 [%rd1], %r7;"""
    out = np.zeros(96, np.uint32)
    report = run(text, [out], block=96, shared=".shared .align 16 .b8 buf[512];", seed=seed)
    assert out.tolist() == [i ^ 31 for i in range(96)]
    assert report.findings == []


@pytest.mark.parametrize("seed", range(10))
def test_parts_of_a_warp_arrive_at_the_cluster_barrier(seed):
    text = """mov.u32 %r1, %ctaid.x; setp.lt.u32 %p1, %r50, 7; @%p1 bra HERE;
    barrier.cluster.arrive.release; barrier.cluster.wait.acquire; bra END;
    HERE: nanosleep.u32 20; mad.lo.u32 %r2, %r1, 4, 0; cvt.u64.u32 %rd1, %r2; add.s64 %rd1, %rd50, %rd1; st.global.b32 [%rd1], 9;
    barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
    END:"""
    out = np.zeros(2, np.uint32)
    run(text, [out], block=32, grid=2, cluster=2, seed=seed)
    assert out.tolist() == [9, 9]


def test_instructions_are_counted_by_warp():
    """Of this body two, one before it and `ret`; lanes that are off count for nothing."""
    for block, grid, warps in ((32, 1, 1), (33, 1, 2), (96, 2, 6)):
        assert run("setp.lt.u32 %p1, %r50, 5; @%p1 mov.u32 %r1, 0;", [], block=block, grid=grid).instructions == 4 * warps
