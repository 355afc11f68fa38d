"""clusterlaunchcontrol: clusters that have not started are taken over, each once; 128-bit registers."""

import numpy as np
import pytest
from ptx_cases import module, run

from megamoe_dsl.sim import GlobalMemory, Launch, SimError, Simulator

SHARED = ".shared .align 16 .b8 smem[64];"
# A work loop: count this CTA's index, ask for another one, stop when there is none. %r20 to %r22: index; %r23: parity.
LOOP = """
mov.u32 %r1, smem; setp.eq.u32 %p1, %r50, 0; mov.u32 %r20, %ctaid.x; mov.u32 %r21, %ctaid.y; mov.u32 %r22, %ctaid.z; mov.u32 %r23, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
{sync}
AGAIN:
mov.u32 %r2, %nctaid.x; mad.lo.u32 %r3, %r21, %r2, %r20; mul.wide.u32 %rd1, %r3, 4; add.s64 %rd1, %rd50, %rd1;
@%p1 {count};
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16;
{cluster}
@{asks} clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{multicast}.b128 [%r1+16], [%r1];
W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], %r23;
@!%p2 bra W;
xor.b32 %r23, %r23, 1;
{{ .reg .b128 %answer; ld.shared.b128 %answer, [%r1+16];
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %answer;
@%p3 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%r20, %r21, %r22, _}}, %answer;
clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r30, %answer; }}
{offset}
fence.proxy.async.shared::cta;
{sync}
@%p3 bra AGAIN;
"""
ALONE = {"sync": "bar.sync 0;", "cluster": "", "asks": "%p1", "multicast": "", "offset": "", "count": "red.global.add.u32 [%rd1], 1"}


def grid_run(text, grid, cluster=1, resident=None, seed=0, race=True):
    counts, memory = np.zeros(grid[0] * grid[1], np.uint32), GlobalMemory()
    ptx = module("ld.param.b64 %rd50, [a]; mov.u32 %r50, %tid.x;" + text, [".param .u64 a"], SHARED)
    launch = Launch((*grid, 1), (32, 1, 1), (cluster, 1, 1), args=(memory.add(counts, "counts"),))
    report = Simulator(ptx, memory, seed=seed, resident=resident, race=race).run([launch])
    return counts, report


@pytest.mark.parametrize("resident", [1, 2, 3, None])
@pytest.mark.parametrize(("seed", "race"), [(0, True), (1, True), (2, False)])
def test_every_cluster_of_the_grid_is_run_once(resident, seed, race):
    counts, report = grid_run(LOOP.format(**ALONE), (4, 3), resident=resident, seed=seed, race=race)
    assert counts.tolist() == [1] * 12
    assert report.findings == []


def test_a_running_cta_takes_over_the_others():
    """One resident CTA: the grid ends although it alone has started, so nobody else can have counted."""
    text = "mov.u32 %r40, %ctaid.x; add.u32 %r40, %r40, 7;" + LOOP.format(**{**ALONE, "count": "st.global.u32 [%rd1], %r40"})
    counts, _ = grid_run(text, (5, 1), resident=1)
    assert counts.tolist() == [7] * 5


def test_multicast_tells_the_whole_cluster():
    """The first CTA asks; both are told the first CTA of the cluster taken over, and add their own rank."""
    parts = {
        "sync": "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;",
        "cluster": "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.u32 %r5, %cluster_ctarank;"
        "setp.eq.and.u32 %p4, %r5, 0, %p1;",
        "asks": "%p4",
        "multicast": ".multicast::cluster::all",
        "offset": "add.u32 %r20, %r20, %r5;",
        "count": ALONE["count"],
    }
    for seed in range(3):
        counts, report = grid_run(LOOP.format(**parts), (8, 1), cluster=2, resident=2, seed=seed)
        assert counts.tolist() == [1] * 8
        assert report.findings == []


def test_a_response_of_another_alignment_is_an_error():
    with pytest.raises(SimError, match="16-byte aligned"):
        grid_run(LOOP.format(**ALONE).replace("[%r1+16]", "[%r1+8]"), (1, 1))


def test_registers_of_128_bits():
    """Loads, stores, and moves to and from two or four parts."""
    text = """{ .reg .b128 %a, %b; mov.u32 %r1, smem; mul.wide.u32 %rd1, %r50, 16; add.s64 %rd2, %rd50, %rd1; ld.global.b128 %a, [%rd2];
    mov.b128 {%rd3, %rd4}, %a; add.u64 %rd4, %rd4, 1; mov.b128 %b, {%rd4, %rd3}; setp.lt.u32 %p1, %r50, 1; @%p1 mov.b128 %b, %a;
    st.shared.b128 [%r1], %b; ld.shared.b128 %a, [%r1]; add.s64 %rd5, %rd51, %rd1; st.global.b128 [%rd5], %a; }"""
    store = np.zeros(9, np.uint64)
    data = store[1 if store.ctypes.data % 16 else 0 :][:4]
    data[:] = [1, 0x7FF0000000000001, 3, 0xFFF4000000000000]
    result = np.zeros(9, np.uint64)
    out = result[1 if result.ctypes.data % 16 else 0 :][:4]
    run(text.replace("[%r1]", "[%r2]").replace("setp", "mad.lo.u32 %r2, %r50, 16, %r1; setp"), [data, out], block=2, shared=SHARED)
    assert out.tolist() == [1, 0x7FF0000000000001, 0xFFF4000000000001, 3]
