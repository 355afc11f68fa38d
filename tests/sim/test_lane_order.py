"""Order between the lanes of a warp: what orders them, and what does not."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_cases import run

from megamoe_dsl.sim import Assumptions, Deadlock, Finding, SimError
from megamoe_dsl.sim.access_record import FULL
from megamoe_dsl.sim.lane_order import LaneOrder

SHARED = ".shared .align 16 .b8 buf[1024];"
OWN = "mov.u32 %r1, buf; mad.lo.u32 %r2, %r50, 4, %r1; xor.b32 %r3, %r50, 1; mad.lo.u32 %r3, %r3, 4, %r1;\n"
SWAP = OWN + "st.shared.b32 [%r2], %r50; {between} ld.shared.b32 %r4, [%r3]; mul.wide.u32 %rd1, %r50, 4; add.s64 %rd1, %rd50, %rd1;\n"
STORE = "st.global.b32 [%rd1], %r4;"


def findings(text: str, block: int = 32, seeds: int = 3, **options: object) -> set[tuple[str, str, str]]:
    """Kind, first and second of all findings under several schedules, without rank and CTA."""
    found: list[Finding] = []
    for seed in range(seeds):
        found += run(text, [np.zeros(128, np.uint32)], block=block, shared=SHARED, seed=seed, **options).findings  # type: ignore[arg-type]
    return {(one.kind, one.first.split(") ")[-1], one.second.split(") ")[-1]) for one in found}


@pytest.mark.parametrize(
    ("between", "ordered"),
    [
        ("bar.warp.sync -1;", True),
        ("bar.sync 0;", True),
        ("barrier.cta.sync 0;", True),
        ("bar.warp.sync 3;", True),
        ("", False),
        ("shfl.sync.idx.b32 %r5, %r2, 0, 31, -1;", False),
        ("elect.sync _|%p1, -1;", False),
        ("vote.sync.ballot.b32 %r5, %p1, -1;", False),
        ("fence.acq_rel.sys;", False),
    ],
)
def test_a_lane_reads_what_another_wrote(between: str, ordered: bool) -> None:
    """Of the `.sync` instructions of a warp only the barrier orders memory."""
    text = SWAP.format(between=between) + STORE
    if between == "bar.warp.sync 3;":  # of two lanes, which are the only ones that go on
        text = text.replace("st.shared", "setp.gt.u32 %p1, %r50, 1; @%p1 exit; st.shared", 1)
    assert findings(text) == (set() if ordered else {("RAW race", "warp 0 lane 1", "warp 0 lane 0")})


def test_lanes_need_no_barrier_for_their_own_bytes_or_for_what_all_wrote_alike() -> None:
    assert findings(SWAP.format(between="").replace("[%r3]", "[%r2]") + STORE + "st.shared.b32 [%r2], 5;") == set()
    assert findings("mov.u32 %r1, buf; st.shared.b32 [%r1], 3; ld.shared.b32 %r2, [%r1];") == set()


def test_a_barrier_of_a_part_orders_that_part() -> None:
    """Lanes 0 to 15 meet; each half reads its neighbors' words."""
    text = SWAP.format(between="setp.lt.u32 %p1, %r50, 16; @%p1 bar.warp.sync 0xffff;") + STORE
    assert findings(text) == {("RAW race", "warp 0 lane 17", "warp 0 lane 16")}


def test_a_barrier_comes_before_the_writes_that_follow() -> None:
    """A staging buffer is filled again: the barrier after the reads is as needed as the one before."""
    again = SWAP.format(between="bar.warp.sync -1;") + STORE + "{} st.shared.b32 [%r2], 7;"
    assert findings(again.format("bar.warp.sync -1;")) == set()
    assert findings(again.format("")) == {("WAR race", "warp 0 lane 1", "warp 0 lane 0")}


WAITER = """mov.u32 %r1, buf; and.b32 %r4, %r50, 31; setp.eq.u32 %p1, %r4, 0; setp.eq.u32 %p2, %r50, 0; setp.lt.u32 %p3, %r50, 32;
mad.lo.u32 %r2, %r4, 4, %r1; @%p2 mbarrier.init.shared.b64 [%r1+256], {count}; @%p3 st.shared.b32 [%r2], 0; bar.sync 0; @!%p3 bra OTHER;
{first} bra END;
OTHER: {second}
END:"""
WAIT = "W: mbarrier.try_wait.parity.shared.b64 %p4, [%r1+256], 0; @!%p4 bra W;"
ARRIVE = "@%p1 mbarrier.arrive.shared.b64 _, [%r1+256];"


@pytest.mark.parametrize(("sync", "ordered"), [("bar.warp.sync -1;", True), ("", False), ("shfl.sync.idx.b32 %r5, %r4, 0, 31, -1;", False)])
def test_one_lane_tells_what_others_wrote(sync: str, ordered: bool) -> None:
    text = WAITER.format(count=1, first=f"st.shared.b32 [%r2], 1; {sync} {ARRIVE}", second=f"{WAIT} ld.shared.b32 %r5, [%r2];")
    assert findings(text, 64) == (set() if ordered else {("RAW race", "warp 0 lane 1", "warp 1 lane 1")})


@pytest.mark.parametrize(("sync", "ordered"), [("bar.warp.sync -1;", True), ("", False)])
def test_one_lane_waits_for_the_others(sync: str, ordered: bool) -> None:
    """What a lane has learned its warp knows after a warp barrier only."""
    waits = f"@!%p1 bra ON; {WAIT} ON: {sync} ld.shared.b32 %r5, [%r2];"
    text = WAITER.format(count=32, first="st.shared.b32 [%r2], 1; mbarrier.arrive.shared.b64 _, [%r1+256];", second=waits)
    found = findings(text, 64)
    assert (("RAW race", "warp 0 lane 1", "warp 1 lane 1") in found) == bool(found) == (not ordered)


COUNTED = """mov.u32 %r1, buf; and.b32 %r4, %r50, 31; mad.lo.u32 %r2, %r4, 4, %r1; setp.lt.u32 %p1, %r4, 2; setp.ge.u32 %p2, %r50, 32;
@%p2 bra OTHER; st.shared.b32 [%r2], 1; {sync} {add} bra END;
OTHER: W: ld.acquire.gpu.global.b32 %r5, [%rd50]; setp.ne.u32 %p3, %r5, 2; @%p3 bra W; setp.ne.u32 %p4, %r4, {reader}; @%p4 bra END;
ld.shared.b32 %r6, [%r2];
END:"""
ADDS = {
    "red": "@%p1 red.release.gpu.global.add.u32 [%rd50], 1;",
    "atom": "@%p1 atom.release.gpu.global.add.u32 %r9, [%rd50], 1;",
    "atom that acquires": "@%p1 atom.acq_rel.gpu.global.add.u32 %r9, [%rd50], 1;",
    "after a fence": "fence.acq_rel.gpu; @%p1 red.relaxed.gpu.global.add.u32 [%rd50], 1;",
}


@pytest.mark.parametrize("add", ADDS.values(), ids=ADDS)
def test_lanes_that_count_together_release_each_its_own(add: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes 0 and 1 count with one instruction: that covers what they wrote, and of lane 2 only what it wrote before a warp barrier."""

    def races(reader: int, sync: str = "") -> set[tuple[str, str, str]]:
        return findings(COUNTED.format(sync=sync, add=add, reader=reader), 64)

    unordered = {("RAW race", "warp 0 lane 2", "warp 1 lane 2")}
    assert [races(reader) for reader in range(3)] == [set(), set(), unordered]
    assert races(2, "bar.warp.sync -1;") == set()
    monkeypatch.setattr(LaneOrder, "whole", lambda order, bits: FULL)  # as if each spoke for its warp
    assert races(2) == set()


USE = "setp.eq.u32 %p6, %r5, 99; @%p6 trap;"


@pytest.mark.parametrize(
    ("between", "ordered", "ordered_without_lockstep"),
    [
        (f"{USE} bar.warp.sync -1;", True, True),
        (f"{USE} elect.sync _|%p5, -1;", True, True),
        (f"{USE} wgmma.wait_group.sync.aligned 0;", True, True),
        (USE, True, False),
        ("bar.warp.sync -1;", False, False),
        ("", False, False),
        ("bar.sync 1, 32;", True, True),
    ],
)
def test_one_lane_tells_that_others_have_read(between: str, ordered: bool, ordered_without_lockstep: bool) -> None:
    """Reads are over when their value was used; that lanes go together is an assumption, unless an instruction waits for them."""
    first = f"ld.shared.b32 %r5, [%r2]; {between} {ARRIVE} st.global.b32 [%rd50], %r5;"
    text = WAITER.format(count=1, first=first, second=f"{WAIT} st.shared.b32 [%r2], 2;")
    for lockstep, fine in ((True, ordered), (False, ordered_without_lockstep)):
        threads = 128 if "wgmma" in between else 64  # wgmma is of whole warpgroups
        kinds = {one for one in findings(text, threads, assumptions=Assumptions(lockstep=lockstep)) if one[0] == "WAR race"}
        assert bool(kinds) == (not fine), (between, lockstep, kinds)


@pytest.mark.parametrize(("leader", "sync", "ordered"), [(0, "", True), (9, "", False), (9, "bar.warp.sync -1;", True)])
def test_the_elected_lane_need_not_be_the_lowest(leader: int, sync: str, ordered: bool) -> None:
    """Lane 0 waits for its store to have read, the elected lane writes the bytes again."""
    text = f"""mov.u32 %r1, buf; mad.lo.u32 %r2, %r50, 4, %r1; setp.eq.u32 %p1, %r50, 0; st.shared.b32 [%r2], %r50;
    fence.proxy.async.shared::cta; bar.warp.sync -1; @!%p1 bra ON;
    cp.async.bulk.global.shared::cta.bulk_group [%rd50], [%r1], 128; cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
    ON: {sync} elect.sync _|%p2, -1; @%p2 st.shared.b32 [%r1], 5;"""
    raw = np.zeros(64, np.uint32)
    out = raw[-raw.ctypes.data % 16 // 4 :][:32]
    kinds = {
        f.kind for seed in range(3) for f in run(text, [out], shared=SHARED, seed=seed, assumptions=Assumptions(leader=leader)).findings
    }
    assert kinds == (set() if ordered else {"WAR race"})


def test_a_leader_is_a_lane() -> None:
    with pytest.raises(SimError, match="leader 32: a lane, 0 to 31"):
        Assumptions(leader=32)


def test_stored_matrices_are_parts_of_all_lanes() -> None:
    text = """mov.u32 %r1, buf; mad.lo.u32 %r2, %r50, 16, %r1; mad.lo.u32 %r3, %r50, 4, %r1;
    stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2], {%r50, %r50, %r50, %r50}; {} ld.shared.b32 %r4, [%r3];"""
    assert findings(text.replace("{}", "bar.warp.sync -1;")) == set()
    assert {kind for kind, _, _ in findings(text.replace("{}", ""))} == {"RAW race"}


def test_lanes_that_went_apart_are_ordered_by_flags_as_any_threads() -> None:
    """Lane 1 takes what lane 0 of its warp has released; without the acquire it is a race."""
    text = """mov.u32 %r1, buf; setp.eq.u32 %p1, %r50, 0; setp.eq.u32 %p2, %r50, 1; @%p1 st.global.b32 [%rd50+4], 0;
    @%p1 bra WRITE; @%p2 bra READ; bra END;
    WRITE: st.shared.b32 [%r1], 4; st.release.cta.global.b32 [%rd50], 1; bra END;
    READ: ld.{}.global.b32 %r3, [%rd50]; setp.eq.u32 %p3, %r3, 0; @%p3 bra READ; ld.shared.b32 %r4, [%r1];
    END:"""
    assert findings(text.format("acquire.cta"), seeds=8) == set()
    assert findings(text.format("relaxed.cta"), seeds=8) == {("RAW race", "warp 0 lane 0", "warp 0 lane 1")}


@pytest.mark.parametrize("mask", ["-1", "0xffff"])
def test_a_shuffle_from_lanes_that_have_left(mask: str) -> None:
    """Lanes 16 to 31 leave; the others shuffle over the whole warp, or over themselves."""
    text = f"""setp.gt.u32 %p1, %r50, 15; @%p1 exit; shfl.sync.bfly.b32 %r2, %r50, 16, 31, {mask};"""
    (warning,) = run(text, [np.zeros(1, np.uint32)]).warnings
    assert warning.endswith("shfl.sync of lane 0 from lane 16, which is not there")
    assert not run(text.replace("16, 31", "8, 31"), [np.zeros(1, np.uint32)]).warnings


def test_a_shuffle_waits_for_lanes_that_are_elsewhere() -> None:
    """Lanes 16 to 31 have gone on, to a barrier that is never complete: the others wait for them, and the report says so."""
    text = """setp.gt.u32 %p1, %r50, 15; @%p1 bra ON; shfl.sync.bfly.b32 %r2, %r50, 16, 31, -1; ON: bar.sync 1, 64;"""
    with pytest.raises(Deadlock, match=r"shfl\.sync.*lanes of member mask 0xffffffff"):
        run(text, [np.zeros(1, np.uint32)])
