"""mbarrier instructions: phases, transaction bytes, waits, scopes, and what goes wrong with them."""

import numpy as np
import pytest
from ptx_cases import run

from megamoe_dsl.sim import Deadlock, SimError

SHARED = ".shared .align 16 .b8 smem[1024];"
INIT = """
mov.u32 %r1, smem;
setp.eq.u32 %p1, %r50, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r1], {count};
bar.sync 0;
"""
WAIT = """
{label}:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], {parity};
@!%p2 bra {label};
"""
# Warp 0 writes a word per lane and arrives; warp 1 waits and copies the words out.
HAND_OVER = (
    INIT.format(count=32)
    + """
shl.b32 %r2, %r50, 2;
add.s32 %r3, %r1, 64;
add.s32 %r3, %r3, %r2;
setp.lt.u32 %p3, %r50, 32;
@!%p3 bra CONSUMER;
st.shared.u32 [%r3], %r50;
mbarrier.arrive.{arrive}shared::cta.b64 _, [%r1];
bra END;
CONSUMER:
"""
    + WAIT.format(label="W0", parity=0)
    + """
ld.shared.u32 %r4, [%r3+-128];
cvt.u64.u32 %rd1, %r2;
add.s64 %rd2, %rd50, %rd1;
st.global.u32 [%rd2+-128], %r4;
END:
"""
)


@pytest.mark.parametrize("seed", range(4))
def test_arrive_releases_and_wait_acquires(seed):
    out = np.zeros(32, np.uint32)
    report = run(HAND_OVER.format(arrive=""), [out], block=64, shared=SHARED, seed=seed)
    np.testing.assert_array_equal(out, np.arange(32))
    assert (report.findings, dict(report.warnings)) == ([], {})


def test_relaxed_arrive_orders_nothing():
    out = np.zeros(32, np.uint32)
    report = run(HAND_OVER.format(arrive="relaxed.cta."), [out], block=64, shared=SHARED)
    assert {finding.kind for finding in report.findings} == {"RAW race"}


def test_phases_alternate_and_counts_reload():
    body = INIT.format(count=32) + "mov.u32 %r9, 0;\n"
    for k in range(3):
        body += "mbarrier.arrive.shared::cta.b64 _, [%r1];\n" + WAIT.format(label=f"W{k}", parity=k & 1) + "add.s32 %r9, %r9, 1;\n"
    out = np.zeros(1, np.uint32)
    report = run(body + "@%p1 st.global.u32 [%rd50], %r9;", [out], shared=SHARED)
    assert out[0] == 3
    assert not report.warnings


def test_state_form_waits_for_the_phase_of_the_token():
    body = (
        INIT.format(count=32)
        + """
    mbarrier.arrive.shared::cta.b64 %rd1, [%r1];
    W: mbarrier.test_wait.shared::cta.b64 %p2, [%r1], %rd1;
    @!%p2 bra W;
    @%p1 st.global.u32 [%rd50], 7;
    """
    )
    out = np.zeros(1, np.uint32)
    run(body, [out], shared=SHARED)
    assert out[0] == 7


def test_expect_tx_holds_the_phase_until_complete_tx():
    body = (
        INIT.format(count=1)
        + """
    @!%p1 bra END;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 48;
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    selp.u32 %r2, 1, 0, %p2;
    mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r1], 48;
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    selp.u32 %r3, 1, 0, %p2;
    st.global.v2.u32 [%rd50], {%r2, %r3};
    END:
    """
    )
    out = np.full(2, 9, np.uint32)
    run(body, [out], shared=SHARED)
    assert out.tolist() == [0, 1]


def test_arrive_with_count():
    body = INIT.format(count=96) + "mbarrier.arrive.shared::cta.b64 _, [%r1], 3;\n" + WAIT.format(label="W0", parity=0)
    out = np.zeros(1, np.uint32)
    assert not run(body + "@%p1 st.global.u32 [%rd50], 1;", [out], shared=SHARED).warnings
    assert out[0] == 1


@pytest.mark.parametrize(
    ("qualifier", "kinds"), [("release.cluster.", set()), ("", set()), ("release.cta.", {"insufficient mbarrier scope"})]
)
def test_remote_arrive_scope(qualifier, kinds):
    """CTA 1 writes CTA 0's shared memory, then arrives on CTA 0's barrier."""
    body = (
        INIT.format(count=1)
        + f"""
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    mov.u32 %r5, %cluster_ctarank;
    mov.u32 %r6, 0;
    mapa.shared::cluster.u32 %r7, %r1, %r6;
    setp.eq.u32 %p4, %r5, 0;
    @%p4 bra WAITER;
    @!%p1 bra DONE;
    st.shared::cluster.u32 [%r7+64], 42;
    mbarrier.arrive.{qualifier}shared::cluster.b64 _, [%r7];
    bra DONE;
    WAITER:
    W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra W;
    ld.shared.u32 %r8, [%r1+64];
    @%p1 st.global.u32 [%rd50], %r8;
    DONE:
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    """
    )
    out = np.zeros(1, np.uint32)
    report = run(body, [out], grid=2, cluster=2, shared=SHARED)
    assert out[0] == 42
    assert kinds <= {finding.kind for finding in report.findings}
    assert bool(kinds) == bool(report.findings)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (INIT.format(count=16) + "mbarrier.arrive.shared::cta.b64 _, [%r1];", "more arrivals than expected"),
        (INIT.format(count=32) + "mbarrier.arrive.shared::cta.b64 _, [%r1+8];", "no initialized mbarrier"),
        (INIT.format(count=0), "count 0"),
        ("mov.u32 %r1, smem; mbarrier.init.shared::cta.b64 [%r1+4], 1;", "8-byte aligned"),
        (INIT.format(count=1) + "@%p1 mbarrier.inval.shared::cta.b64 [%r1]; @%p1 mbarrier.inval.shared::cta.b64 [%r1];", "no initialized"),
        (INIT.format(count=1) + "@%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 1048576;", "out of range"),
    ],
)
def test_misuse_is_an_error(body, message):
    with pytest.raises(SimError, match=message):
        run(body, [], shared=SHARED)


def test_missing_arrival_deadlocks_with_a_report():
    body = INIT.format(count=33) + "mbarrier.arrive.shared::cta.b64 _, [%r1];\n" + WAIT.format(label="W0", parity=0)
    with pytest.raises(Deadlock, match="32/33 arrived"):
        run(body, [], shared=SHARED)


def test_barrier_left_mid_phase_is_a_warning():
    report = run(INIT.format(count=33) + "mbarrier.arrive.shared::cta.b64 _, [%r1];", [], shared=SHARED)
    assert any("left mid-phase" in text for text in report.warnings)
