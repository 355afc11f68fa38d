"""The race detector: every kind of finding, and the correct variants it must accept."""

from dataclasses import replace

import numpy as np
import pytest
from ptx_cases import module, run

from megamoe_dsl.sim import Finding, GlobalMemory, Launch, Report, Simulator

SHARED = ".shared .align 16 .b8 buf[512];"
ROLES = "mov.b32 %r1, buf; setp.lt.u32 %p1, %r50, 32; @%p1 bra FIRST; {second} bra END; FIRST: {first} END:"


def shared_race(first: str, second: str, seed: int = 0):
    report = run(ROLES.format(first=first, second=second), [np.zeros(64, np.uint32)], block=64, shared=SHARED, seed=seed)
    return report.findings


def test_write_write_and_its_location():
    text = "setp.eq.u32 %p2, %r50, {}; @%p2 st.shared.b32 [%r1+8], 1;"
    (finding,) = shared_race(text.format(0), text.format(32))
    assert finding.kind == "WAW race"
    assert finding.where == "rank 0 CTA (0,0,0) smem+8"
    assert {finding.first, finding.second} == {"rank 0 CTA (0,0,0) warp 0 lane 0", "rank 0 CTA (0,0,0) warp 1 lane 0"}
    assert min(finding.first_line, finding.second_line) > 0 and finding.first_line == finding.second_line
    assert "smem+8" in str(finding)


@pytest.mark.parametrize("seed", range(3))
def test_unordered_read_and_write(seed):
    init = "st.shared.b32 [%r1], 0;"
    text = f"mov.b32 %r1, buf; setp.eq.u32 %p2, %r50, 0; @%p2 {init} bar.sync 0;" + ROLES
    text = text.format(first="st.shared.b32 [%r1], %r50;", second="ld.shared.b32 %r2, [%r1];")
    findings = run(text, [np.zeros(1, np.uint32)], block=64, shared=SHARED, seed=seed).findings
    assert {f.kind for f in findings} <= {"RAW race", "WAR race"}
    assert len(findings) == 1


def test_bytes_of_one_word_do_not_conflict():
    text = "st.shared.b8 [%r1+{}], %r50;"
    assert shared_race("setp.eq.u32 %p2, %r50, 0; @%p2 " + text.format(1), "setp.eq.u32 %p2, %r50, 32; @%p2 " + text.format(2)) == []


def test_a_barrier_orders_and_a_missing_one_does_not():
    exchange = """mad.lo.u32 %r2, %r50, 4, %r1; st.shared.b32 [%r2], %r50; {} xor.b32 %r3, %r50, 32;
    mad.lo.u32 %r3, %r3, 4, %r1; ld.shared.b32 %r4, [%r3];"""
    text = "mov.b32 %r1, buf;" + exchange
    assert run(text.format("bar.sync 0;"), [np.zeros(1, np.uint32)], block=64, shared=SHARED).findings == []
    # a second write after the reads, unordered with them
    again = text.format("bar.sync 0;") + "st.shared.b32 [%r2], %r50;"
    kinds = {f.kind for seed in range(4) for f in run(again, [np.zeros(1, np.uint32)], block=64, shared=SHARED, seed=seed).findings}
    assert kinds == {"RAW race", "WAR race"}


def test_concurrent_readers_are_all_remembered():
    text = """mov.b32 %r1, buf; setp.eq.u32 %p2, %r50, 0; @%p2 st.shared.b32 [%r1], 1; bar.sync 0; ld.shared.b32 %r2, [%r1];
    setp.lt.u32 %p3, %r50, 96; @%p3 bra JOIN; bra END; JOIN: bar.sync 1, 96; @%p2 st.shared.b32 [%r1], 2; END:"""
    (finding,) = run(text, [np.zeros(1, np.uint32)], block=128, shared=SHARED).findings
    assert finding.kind == "WAR race"
    assert finding.first.endswith("warp 3")


HANDOFF = """
mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; @!%p1 bra CONSUMER; {write} bra END;
CONSUMER: {wait} setp.eq.u32 %p2, %r2, 0; @%p2 bra CONSUMER; {after} ld.global.b32 %r3, [%rd50]; END:
"""


def handoff(write: str, wait: str, after: str = "", cluster: int = 1, seed: int = 0) -> set[str]:
    """Thread 0 of CTA 0 writes a0 and signals a1; thread 0 of CTA 1 waits and reads."""
    data, flag = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    write = "st.global.b32 [%rd50], 7;" + write
    report = run(HANDOFF.format(write=write, wait=wait, after=after), [data, flag], block=1, grid=2, cluster=cluster, seed=seed)
    return {f.kind for f in report.findings}


ACQUIRE = "ld.acquire.gpu.global.b32 %r2, [%rd51];"


@pytest.mark.parametrize(
    ("write", "wait", "after"),
    [
        ("st.release.gpu.global.b32 [%rd51], 1;", ACQUIRE, ""),
        ("red.release.gpu.global.add.u32 [%rd51], 1;", ACQUIRE, ""),
        ("fence.acq_rel.gpu; st.relaxed.gpu.global.b32 [%rd51], 1;", ACQUIRE, ""),
        ("membar.gl; red.relaxed.gpu.global.add.u32 [%rd51], 1;", "ld.relaxed.gpu.global.b32 %r2, [%rd51];", "fence.acq_rel.gpu;"),
        ("st.release.sys.global.b32 [%rd51], 1;", "atom.acquire.sys.global.add.u32 %r2, [%rd51], 0;", ""),
    ],
)
def test_release_acquire_patterns_order(write, wait, after):
    assert handoff(write, wait, after) == set()


@pytest.mark.parametrize(
    ("write", "wait", "after"),
    [
        ("st.relaxed.gpu.global.b32 [%rd51], 1;", ACQUIRE, ""),
        ("st.release.gpu.global.b32 [%rd51], 1;", "ld.relaxed.gpu.global.b32 %r2, [%rd51];", ""),
        ("st.release.gpu.global.b32 [%rd51], 1;", "ld.volatile.global.b32 %r2, [%rd51];", ""),
        ("fence.acq_rel.cta; st.relaxed.gpu.global.b32 [%rd51], 1;", ACQUIRE, ""),
    ],
)
def test_broken_patterns_are_races(write, wait, after):
    assert "RAW race" in handoff(write, wait, after)


def test_scope_must_include_both_sides():
    release = "st.release.{}.global.b32 [%rd51], 1;"
    found = handoff(release.format("cta"), ACQUIRE)
    assert "insufficient scope for synchronization across CTAs" in found and "RAW race" in found
    assert handoff(release.format("cluster"), ACQUIRE, cluster=2) == set()
    assert "RAW race" in handoff(release.format("cluster"), ACQUIRE, cluster=1)
    assert "RAW race" in handoff(release.format("gpu"), ACQUIRE.replace("gpu", "cta"))


def cross_rank(scope: str) -> set[str]:
    memory = GlobalMemory()
    buffers = [np.zeros(2, np.uint32) for _ in range(2)]
    addresses = [memory.add(b, "sym", rank=r) for r, b in enumerate(buffers)]
    body = f"""ld.param.b64 %rd1, [mine]; ld.param.b64 %rd2, [peer]; st.global.b32 [%rd2], 5;
    red.release.{scope}.global.add.u32 [%rd2+4], 1;
    SPIN: ld.acquire.{scope}.global.b32 %r1, [%rd1+4]; setp.eq.u32 %p1, %r1, 0; @%p1 bra SPIN; ld.global.b32 %r2, [%rd1];"""
    simulator = Simulator(module(body, [".param .u64 mine", ".param .u64 peer"]), memory)
    launches = [Launch((1, 1, 1), (1, 1, 1), args=(addresses[r], addresses[1 - r]), rank=r) for r in range(2)]
    report = simulator.run(launches)
    assert [b.tolist() for b in buffers] == [[5, 1], [5, 1]]
    return {f.kind for f in report.findings}


def test_ranks_need_system_scope():
    assert cross_rank("sys") == set()
    assert "insufficient scope for synchronization across ranks" in cross_rank("gpu")


def test_a_relaxed_cluster_arrive_orders_nothing():
    text = """mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; @%p1 st.global.b32 [%rd50], 7;
    barrier.cluster.arrive{}; barrier.cluster.wait; @!%p1 ld.global.b32 %r3, [%rd50];"""
    data = np.zeros(1, np.uint32)
    assert run(text.format(".release"), [data], block=1, grid=2, cluster=2).findings == []
    assert {f.kind for f in run(text.format(".relaxed"), [data], block=1, grid=2, cluster=2).findings} == {"RAW race"}


BARRIER_INIT = """mov.b32 %r1, buf; mov.u32 %r2, %cluster_ctarank; setp.eq.u32 %p1, %r50, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1; {fence}
barrier.cluster.arrive{relaxed}.aligned; barrier.cluster.wait.acquire.aligned; xor.b32 %r3, %r2, 1;
mapa.shared::cluster.u32 %r4, %r1, %r3;
@%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4];
WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r1], 0;
@!%p2 bra WAIT;"""


def test_fence_mbarrier_init_with_a_relaxed_arrive_publishes_the_barrier():
    fence = "fence.mbarrier_init.release.cluster;"
    kinds = {}
    for name, fields in {"fence": (fence, ".relaxed"), "release": ("", ".release"), "neither": ("", ".relaxed")}.items():
        text = BARRIER_INIT.format(fence=fields[0], relaxed=fields[1])
        kinds[name] = {f.kind for f in run(text, [np.zeros(1, np.uint32)], grid=2, cluster=2, shared=SHARED).findings}
    assert kinds == {"fence": set(), "release": set(), "neither": {"atomic vs unordered weak write"}}


ELECTED = """setp.ne.u32 %p2, %r50, {lane}; mov.b32 %r1, buf; @%p2 bra JOIN;
mbarrier.init.shared::cta.b64 [%r1], 1; mbarrier.init.shared::cta.b64 [%r1+8], 1; {fence}
JOIN: barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned; setp.ne.u32 %p2, %r50, 40; @%p2 bra END;
mbarrier.arrive.shared::cta.b64 _, [%r1]; mbarrier.arrive.shared::cta.b64 _, [%r1+8];
END:"""


@pytest.mark.parametrize("lane", [0, 9])
def test_a_lane_that_fences_alone_publishes_in_the_arrive_of_its_warp(lane):
    fence = "fence.mbarrier_init.release.cluster;"
    kinds = {
        text: {f.kind for f in run(ELECTED.format(lane=lane, fence=text), [np.zeros(1, np.uint32)], block=64, shared=SHARED).findings}
        for text in (fence, "")
    }
    assert kinds == {fence: set(), "": {"atomic vs unordered weak write"}}


def test_atomics_race_with_weak_writes_but_not_with_each_other():
    data = np.zeros(1, np.uint32)
    assert run("red.global.add.u32 [%rd50], 1;", [data], block=64, grid=2).findings == []
    text = "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; @%p1 st.global.b32 [%rd50], 0; @!%p1 red.global.add.u32 [%rd50], 1;"
    kinds = {f.kind for seed in range(6) for f in run(text, [data], block=1, grid=2, seed=seed).findings}
    assert kinds == {"atomic vs unordered weak write", "weak write vs unordered atomic"}


READ = {"atomic vs unordered weak read", "weak read vs unordered atomic"}
WRITE = {"atomic vs unordered weak write", "weak write vs unordered atomic"}


@pytest.mark.parametrize(
    ("atomic", "weak", "kinds"),
    [
        (
            "red.global.add.u32 [%rd50], 1;",
            "ld.global.b32 %r2, [%rd50];",
            READ,
        ),
        (
            "st.relaxed.gpu.global.b32 [%rd50], 1;",
            "ld.global.b32 %r2, [%rd50];",
            READ,
        ),
        (
            "ld.relaxed.gpu.global.b32 %r2, [%rd50];",
            "st.global.b32 [%rd50], 1;",
            WRITE,
        ),
        ("ld.relaxed.gpu.global.b32 %r2, [%rd50];", "ld.global.b32 %r2, [%rd50];", set()),
    ],
)
def test_strong_and_weak_accesses_in_either_order(atomic, weak, kinds):
    text = f"mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; @%p1 {atomic} @!%p1 {weak}"
    seen = {f.kind for seed in range(12) for f in run(text, [np.zeros(1, np.uint32)], block=1, grid=2, seed=seed).findings}
    assert seen == kinds


def test_a_counter_is_reset_after_its_last_use():
    """All add, release and acquire a second counter; the last to arrive stores zero plainly: no race, not even with its own releases."""
    text = """atom.release.gpu.global.add.u32 %r1, [%rd50], 1; fence.acq_rel.gpu; atom.acq_rel.gpu.global.add.u32 %r2, [%rd50+4], 1;
    setp.eq.u32 %p1, %r2, 3; @%p1 st.global.b32 [%rd50], 0; @%p1 ld.global.b32 %r3, [%rd50+4];"""
    for seed in range(4):
        data = np.zeros(2, np.uint32)
        assert run(text, [data], block=1, grid=4, seed=seed).findings == []
        assert data.tolist() == [0, 4]


def test_detector_can_be_off():
    report = run("st.global.b32 [%rd50], 1;", [np.zeros(1, np.uint32)], block=64, race=False)
    assert report.findings == []


@pytest.mark.parametrize("size", [1, 3])
def test_lanes_that_store_weakly_where_a_strong_access_was(size):
    """Several lanes of one instruction store to one location: one finding when nothing orders them after the atomic, none otherwise."""
    text = "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; @%p1 red.global.add.u32 [%rd50], 1; @!%p1 st.global.b32 [%rd50], 7;"
    kinds = {f.kind for seed in range(8) for f in run(text, [np.zeros(1, np.uint32)], block=size, grid=2, seed=seed).findings}
    assert kinds == WRITE
    text = "red.global.add.u32 [%rd50], 1; bar.warp.sync -1; st.global.b32 [%rd50], 7;"
    assert run(text, [np.zeros(1, np.uint32)], block=size).findings == []


def test_findings_are_grouped_by_kind_memory_and_lines():
    """32 CTAs write all words of two buffers without order: one finding for each, whatever the pairs of agents and the places."""
    text = """mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd1, %r50, 4;
    add.s64 %rd2, %rd50, %rd1; add.s64 %rd3, %rd51, %rd1;
    st.global.b32 [%rd2], %r1;
    st.global.b32 [%rd3], %r1;"""
    found = run(text, [np.zeros(32, np.uint32), np.zeros(32, np.uint32)], grid=32).findings
    assert sorted((f.kind, f.where.split("@")[0], f.count) for f in found) == [("WAW race", "a0", 31), ("WAW race", "a1", 31)]


def test_findings_of_one_kind_and_pair_of_sources_are_one():
    one = Finding("RAW race", "a", "b", "smem+0", 3, 4, "f:1", "f:2", "k", "l", 2)
    alike = replace(one, first="c", where="smem+8", first_line=7, second_line=9, count=3)
    others = ({"kind": "WAR race"}, {"first_source": "f:9"}, {"second_source": "f:9"}, {"first_kernel": "m"}, {"second_kernel": "m"})
    bare = replace(one, first_source="", second_source="")
    lines = [replace(bare, first_line=8), replace(bare, second_line=8)]
    apart = [*(replace(one, **fields) for fields in others), bare, *lines]
    found = Report(findings=[one, *apart, alike]).by_source()
    assert found == [replace(alike, count=5), *apart]
