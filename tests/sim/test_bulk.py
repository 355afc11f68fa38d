"""Linear bulk copies, reductions, groups, cp.async, st.async and st.bulk."""

import numpy as np
import pytest
import torch
from ptx_cases import run

from megamoe_dsl.sim import SimError
from megamoe_dsl.sim.access_record import ROWS
from megamoe_dsl.sim.clock import Clock
from megamoe_dsl.sim.tma_engine import AsyncCopy, AsyncGroups

SHARED = ".shared .align 1024 .b8 smem[8192];"
SETUP = """
mov.u32 %r1, smem;
add.s32 %r2, %r1, 4096;
setp.eq.u32 %p1, %r50, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
@%p1 fence.mbarrier_init.release.cluster;
bar.sync 0;
"""
LOAD = """
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {size};
@%p1 cp.async.bulk.shared::{space}.global.mbarrier::complete_tx::bytes [%r2], [%rd50], {size}, [%r1];
"""
WAIT = """
W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
@!%p2 bra W;
"""
COPY_OUT = """
shl.b32 %r3, %r50, 4;
add.s32 %r4, %r2, %r3;
ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r4];
cvt.u64.u32 %rd1, %r3;
add.s64 %rd2, %rd51, %rd1;
st.global.v4.u32 [%rd2], {%r10, %r11, %r12, %r13};
"""
LANES_16_BYTES = """
shl.b32 %r3, %r50, 4;
add.s32 %r4, %r2, %r3;
cvt.u64.u32 %rd1, %r3;
add.s64 %rd2, %rd50, %rd1;
"""
"""Where a lane's 16 bytes lie, in shared memory and in the first argument."""
FILL = """
shl.b32 %r3, %r50, 2;
add.s32 %r4, %r2, %r3;
cvt.u64.u32 %rd1, %r3;
add.s64 %rd2, %rd50, %rd1;
ld.global.u32 %r5, [%rd2];
st.shared.u32 [%r4], %r5;
"""
STORE = """
{fence}
bar.warp.sync 0xffffffff;
@%p1 {opcode} [%rd51], [%r2], 128;
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.wait_group{read} 0;
"""
COPY = "cp.async.bulk.global.shared::cta.bulk_group"
LATER = LOAD.format(size=128, space="cta") + WAIT
"""Takes longer than a store."""


def words(count, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint32)


@pytest.mark.parametrize("space", ["cta", "cluster"])
@pytest.mark.parametrize(("seed", "race"), [(0, True), (1, True), (2, False)])
def test_load(space, seed, race):
    source, out = words(128, seed), np.zeros(128, np.uint32)
    report = run(SETUP + LOAD.format(size=512, space=space) + WAIT + COPY_OUT, [source, out], shared=SHARED, seed=seed, race=race)
    np.testing.assert_array_equal(out, source)
    assert (report.findings, dict(report.warnings)) == ([], {})


def test_reading_without_waiting_is_a_race_or_uninitialized():
    source, out = words(128), np.zeros(128, np.uint32)
    with pytest.raises(SimError, match="uninitialized shared memory"):
        run(SETUP + LOAD.format(size=512, space="cta") + COPY_OUT, [source, out], shared=SHARED)
    zeroed = "@%p1 st.bulk.weak.shared::cta [%r2], 512, 0;\n@%p1 fence.proxy.async;\n"
    report = run(SETUP + zeroed + LOAD.format(size=512, space="cta") + COPY_OUT + WAIT, [source, out], shared=SHARED)
    assert {finding.kind for finding in report.findings} <= {"RAW race", "WAR race"} != set()
    assert report.findings


@pytest.mark.parametrize(("read", "race"), [("", True), (".read", True), (".read", False)])
def test_store(read, race):
    source, out = words(32), np.zeros(32, np.uint32)
    body = SETUP + FILL + STORE.format(fence="fence.proxy.async.shared::cta;", opcode=COPY, read=read)
    report = run(body, [source, out], shared=SHARED, race=race)
    np.testing.assert_array_equal(out, source)
    assert not report.findings


def test_store_without_proxy_fence_is_found():
    body = SETUP + FILL + STORE.format(fence="", opcode=COPY, read="")
    report = run(body, [words(32), np.zeros(32, np.uint32)], shared=SHARED)
    assert {finding.kind for finding in report.findings} == {"missing fence.proxy.async before async-proxy read"}


def test_store_of_uninitialized_memory_is_an_error():
    with pytest.raises(SimError, match="bulk store reads uninitialized shared memory"):
        run(SETUP + STORE.format(fence="", opcode=COPY, read=""), [words(32), words(32)], shared=SHARED)


def test_what_was_stored_is_initialized_and_nothing_behind_it():
    fill = "mad.lo.u32 %r4, %r50, 4, %r2; st.shared.u32 [%r4], %r50;"
    body = SETUP + fill + STORE.format(fence="fence.proxy.async.shared::cta;", opcode=COPY, read="") + "@%p1 ld.global.u32 %r9, [%rd51+{}];"
    out = np.zeros(64, np.uint32)
    run(body.format(124), [words(32), out], shared=SHARED, initialized=False)
    assert out[:32].tolist() == list(range(32))
    with pytest.raises(SimError, match="uninitialized global memory: a1@rank0\\+128"):
        run(body.format(128), [words(32), out], shared=SHARED, initialized=False)


@pytest.mark.parametrize(("wait", "races"), [("wait_group.read 0", 0), ("", 1)])
def test_wait_group_read_frees_the_source(wait, races):
    wait = f"@%p1 cp.async.bulk.{wait};" if wait else ""
    body = (
        SETUP
        + FILL
        + f"""
    fence.proxy.async.shared::cta;
    bar.warp.sync 0xffffffff;
    @%p1 {COPY} [%rd51], [%r2], 128;
    @%p1 cp.async.bulk.commit_group;
    {wait}
    bar.warp.sync 0xffffffff;
    st.shared.u32 [%r4], 0;
    @%p1 cp.async.bulk.wait_group 0;
    """
    )
    kinds: set[str] = set()
    for seed in range(6):
        kinds |= {f.kind for f in run(body, [words(32), np.zeros(32, np.uint32)], shared=SHARED, seed=seed).findings}
    assert bool(kinds) == bool(races)


def test_wait_group_read_does_not_publish_the_destination():
    read_back = "@%p1 ld.global.u32 %r9, [%rd51];"
    results = {}
    for read in ("", ".read"):
        store = STORE.format(fence="fence.proxy.async.shared::cta;", opcode=COPY, read=read)
        body = SETUP + FILL + store + LATER + read_back
        reports = [run(body, [words(32), np.zeros(32, np.uint32)], shared=SHARED, seed=seed) for seed in range(8)]
        results[read] = {finding.kind for report in reports for finding in report.findings}
    assert results[""] == set()
    assert "RAW race" in results[".read"]  # in some schedule the copy has written when it is read


def test_missing_wait_at_exit_is_a_warning():
    body = SETUP + FILL + f"fence.proxy.async.shared::cta;\nbar.warp.sync 0xffffffff;\n@%p1 {COPY} [%rd51], [%r2], 128;\n"
    assert any("never committed" in w for w in run(body, [words(32), words(32)], shared=SHARED).warnings)
    report = run(body + "@%p1 cp.async.bulk.commit_group;", [words(32), words(32)], shared=SHARED)
    assert any("exit without wait_group" in w for w in report.warnings)


@pytest.mark.parametrize(
    ("suffix", "dtype"),
    [("add.u32", torch.int32), ("add.f32", torch.float32), ("add.noftz.bf16", torch.bfloat16), ("max.s32", torch.int32)],
)
def test_reductions(suffix, dtype):
    generator = torch.Generator().manual_seed(1)
    count = 128 // torch.empty(0, dtype=dtype).element_size()
    x, y = (torch.randint(-50, 50, (count,), generator=generator).to(dtype) for _ in range(2))
    out = y.clone()
    opcode = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{suffix}"
    report = run(
        SETUP + FILL + STORE.format(fence="fence.proxy.async.shared::cta;", opcode=opcode, read=""),
        [x.view(torch.uint8).numpy().view(np.uint32), out],  # type: ignore[list-item]
        shared=SHARED,
    )
    expected = torch.maximum(x, y) if suffix.startswith("max") else x + y
    assert torch.equal(out, expected)
    assert not report.findings


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (LOAD.format(size=24, space="cta"), "size 0x18 must be a multiple of 16"),
        (LOAD.format(size=8192, space="cta"), "shared access out of bounds"),
        (LOAD.format(size=1024, space="cta"), "global access out of bounds"),
    ],
)
def test_bad_loads(load, message):
    with pytest.raises(SimError, match=message):
        run(SETUP + load + WAIT, [words(128), words(128)], shared=SHARED)


def test_multicast_load_reaches_every_cta():
    body = (
        SETUP
        + """
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 512;
    mov.u32 %r6, %cluster_ctarank;
    setp.eq.and.u32 %p3, %r6, 0, %p1;
    mov.b16 %h1, 3;
    @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r2], [%rd50], 512, [%r1], %h1;
    shl.b32 %r7, %r6, 9;
    cvt.u64.u32 %rd3, %r7;
    add.s64 %rd51, %rd51, %rd3;
    """
        + WAIT
        + COPY_OUT
        + """
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    """
    )
    source, out = words(128), np.zeros(256, np.uint32)
    report = run(body, [source, out], grid=2, cluster=2, shared=SHARED)
    np.testing.assert_array_equal(out, np.tile(source, 2))
    assert not report.findings


@pytest.mark.parametrize("wait", ["cp.async.commit_group; cp.async.wait_group 0;", "cp.async.wait_all;"])
def test_cp_async_with_zero_fill(wait):
    body = (
        SETUP
        + LANES_16_BYTES
        + f"""
    and.b32 %r8, %r50, 1;
    shl.b32 %r8, %r8, 4;
    cp.async.cg.shared.global [%r4], [%rd2], 16, %r8;
    {wait}
    """
        + COPY_OUT
    )
    source, out = words(128), np.ones(128, np.uint32)
    report = run(body, [source, out], shared=SHARED)
    np.testing.assert_array_equal(out.reshape(32, 4), source.reshape(32, 4) * (np.arange(32) % 2)[:, None].astype(np.uint32))
    assert not report.findings


@pytest.mark.parametrize(("order", "races"), [("bar.warp.sync -1;", False), ("", True)])
def test_what_another_lane_has_copied_is_seen_behind_a_barrier_of_the_warp(order, races):
    """A lane waits for its own copies only; here each reads what the lane beside it has copied."""
    body = (
        SETUP
        + LANES_16_BYTES
        + f"""
    cp.async.cg.shared.global [%r4], [%rd2], 16;
    cp.async.commit_group;
    cp.async.wait_group 0;
    {order}
    xor.b32 %r4, %r4, 16;
    ld.shared.b32 %r8, [%r4];
    shl.b32 %r3, %r50, 2;
    cvt.u64.u32 %rd1, %r3;
    add.s64 %rd2, %rd51, %rd1;
    st.global.b32 [%rd2], %r8;
    """
    )
    source, out = words(128), np.zeros(32, np.uint32)
    report = run(body, [source, out], shared=SHARED)
    np.testing.assert_array_equal(out, source[(np.arange(32) ^ 1) * 4])
    assert bool(report.findings) == races


def test_copies_that_have_completed_are_remembered_as_one():
    """A thread whose copies arrive at mbarriers closes no group; whoever waits learns of all copies, those of earlier arrivals too."""
    groups = AsyncGroups()
    for agent in range(5):
        rows = np.zeros((ROWS, 5), np.int32)
        rows[:, agent] = agent + 1
        groups.open.append(AsyncCopy(Clock(rows)))
        seen = groups.so_far()
        assert sum(not copy.done for copy in seen) == 1 and len(seen) <= 2
        assert [max(copy.clock.at(i) for copy in seen) for i in range(agent + 1)] == list(range(1, agent + 2))
        seen[-1].done = True
    assert groups.ready(0, read=False) and not groups.committed


@pytest.mark.parametrize("race", [True, False])
def test_cp_async_arrives_on_an_mbarrier(race):
    body = (
        SETUP.replace("[%r1], 1;", "[%r1], 32;")
        + LANES_16_BYTES
        + """
    cp.async.ca.shared.global [%r4], [%rd2], 16;
    cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];
    """
        + WAIT
        + COPY_OUT
    )
    source, out = words(128), np.zeros(128, np.uint32)
    report = run(body, [source, out], shared=SHARED, race=race)
    np.testing.assert_array_equal(out, source)
    assert not report.findings


@pytest.mark.parametrize("race", [True, False])
def test_st_async_to_the_other_cta(race):
    body = (
        SETUP
        + """
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 128;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    mov.u32 %r6, %cluster_ctarank;
    xor.b32 %r7, %r6, 1;
    shl.b32 %r3, %r50, 2;
    add.s32 %r4, %r2, %r3;
    mapa.shared::cluster.u32 %r8, %r4, %r7;
    mapa.shared::cluster.u32 %r9, %r1, %r7;
    mad.lo.s32 %r10, %r6, 100, %r50;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r8], %r10, [%r9];
    """
        + WAIT
        + """
    ld.shared.u32 %r11, [%r4];
    shl.b32 %r12, %r6, 7;
    add.s32 %r12, %r12, %r3;
    cvt.u64.u32 %rd1, %r12;
    add.s64 %rd2, %rd50, %rd1;
    st.global.u32 [%rd2], %r11;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    """
    )
    out = np.zeros(64, np.uint32)
    report = run(body, [out], grid=2, cluster=2, shared=SHARED, race=race)
    assert out.tolist() == [100 + i for i in range(32)] + list(range(32))
    assert not report.findings


@pytest.mark.parametrize(("kind", "count"), [("v2.b32", 2), ("v4.b32", 4), ("v4.f32", 4), ("v2.s64", 2), ("v2.b64", 2), ("u32.v4", 4)])
def test_st_async_of_vectors(kind, count):
    """Every lane stores its vector, whose bytes are counted; the last lanes' registers come back in order.  ptxas takes CUTLASS's order of
    vector and type too."""
    wide = kind.endswith("64")
    plain = f"v{count}.b{64 if wide else 32}"
    size = count * (8 if wide else 4)
    names = [f"%rd{10 + i}" if wide else f"%r{10 + i}" for i in range(count)]
    fill = "".join(
        f"cvt.u64.u32 {n}, %r50; add.u64 {n}, {n}, {100 * i};" if wide else f"add.u32 {n}, %r50, {100 * i};" for i, n in enumerate(names)
    )
    body = f"""{SETUP} {fill} mad.lo.u32 %r4, %r50, {size}, %r2;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {32 * size};
    bar.sync 0;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{kind} [%r4], {{{", ".join(names)}}}, [%r1];
    {WAIT} ld.shared.{plain} {{{", ".join(names)}}}, [%r4]; cvt.u64.u32 %rd1, %r50; mul.lo.u64 %rd1, %rd1, {size};
    add.s64 %rd2, %rd50, %rd1; st.global.{plain} [%rd2], {{{", ".join(names)}}};"""
    store = np.zeros(32 * size // 8 + 4, np.uint64)
    out = store[-store.ctypes.data % 32 // 8 :][: 32 * size // 8]
    report = run(body, [out], shared=SHARED)
    words = out.view(np.uint64 if wide else np.uint32).reshape(32, count)
    assert words.tolist() == [[thread + 100 * i for i in range(count)] for thread in range(32)]
    assert not report.findings


@pytest.mark.parametrize(
    ("kind", "names", "offset"), [("b32", "%r3", 2), ("v2.b32", "{%r3, %r4}", 4), ("v4.b32", "{%r3, %r4, %r3, %r4}", 8)]
)
def test_st_async_where_it_does_not_fit(kind, names, offset):
    mapped = f"mov.u32 %r3, 1; mov.u32 %r4, 2; add.u32 %r5, %r2, {offset};"
    store = f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{kind} [%r5], {names}, [%r1];"
    with pytest.raises(SimError, match=r"smem.*misaligned"):
        run(SETUP + mapped + store, [words(4)], shared=SHARED)


@pytest.mark.parametrize(
    "instruction",
    [
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r2], %r3, [%r1];",
        "st.async.release.global.u32 [%rd50], %r3;",
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r2], [%r3], 16, [%r1];",
        "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd50], [%r2], 16, %h1;",
    ],
)
def test_what_is_not_modelled_is_refused_at_load(instruction):
    with pytest.raises(SimError, match="modeled"):
        run(SETUP + instruction, [words(4)], shared=SHARED)
