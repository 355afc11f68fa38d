"""Several launches in one run: those of a rank follow each other, those of different ranks do not."""

import numpy as np
import pytest
from ptx_cases import module

from megamoe_dsl.sim import Deadlock, GlobalMemory, Launch, Report, Simulator

SELECT = "ld.param.b64 %rd1, [data]; ld.param.b64 %rd2, [flag]; ld.param.u32 %r9, [what]; setp.ne.u32 %p9, %r9, 0; @%p9 bra SECOND;\n"


def run(first: str, second: str, ranks: list[tuple[int, int]], seed: int = 0) -> tuple[np.ndarray, Report]:
    """Launches (rank, 0 or 1: which body) in this order. `%rd1` points at 64 words, `%rd2` at a flag."""
    text = module(SELECT + first + "bra END;\nSECOND:\n" + second + "END:", [".param .u64 data", ".param .u64 flag", ".param .u32 what"])
    data, flag, memory = np.zeros(64, np.uint32), np.zeros(1, np.uint32), GlobalMemory()
    addresses = memory.add(data, "data"), memory.add(flag, "flag")
    launches = [Launch((1, 1, 1), (32, 1, 1), args=(*addresses, what), rank=rank) for rank, what in ranks]
    return data, Simulator(text, memory, seed=seed).run(launches)


WRITE = "mov.u32 %r1, %tid.x; mad.wide.u32 %rd3, %r1, 4, %rd1; st.global.b32 [%rd3], 7;\n"
INCREMENT = WRITE.replace("st.global.b32 [%rd3], 7;", "ld.global.b32 %r2, [%rd3]; add.u32 %r2, %r2, 1; st.global.b32 [%rd3], %r2;")


@pytest.mark.parametrize("seed", range(3))
def test_a_launch_sees_what_the_one_before_it_wrote(seed):
    data, report = run(WRITE, INCREMENT, [(0, 0), (0, 1), (0, 1)], seed)
    assert data[:32].tolist() == [9] * 32
    assert report.findings == []


def test_the_end_of_a_launch_covers_the_async_proxy():
    """A bulk copy reads what plain stores of the launch before it wrote, without a proxy fence; and stores are complete at the end."""
    copy = """{ .reg .b32 %s; .reg .pred %e; mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra END;
    mov.b32 %s, buf; mbarrier.init.shared.b64 [%s+128], 1; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%s+128], 128;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%rd1], 128, [%s+128];
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %e, [%s+128], 0; @!%e bra WAIT;
    add.s64 %rd4, %rd1, 128; cp.async.bulk.global.shared::cta.bulk_group [%rd4], [%s], 128; cp.async.bulk.commit_group; }"""
    shared = ".shared .align 128 .b8 buf[256];\n"
    text = module(
        SELECT + WRITE + "bra END;\nSECOND:\n" + copy + "END:", [".param .u64 data", ".param .u64 flag", ".param .u32 what"], shared
    )
    data, flag, memory = np.zeros(64, np.uint32), np.zeros(1, np.uint32), GlobalMemory()
    addresses = memory.add(data, "data"), memory.add(flag, "flag")
    launches = [Launch((1, 1, 1), (32, 1, 1), args=(*addresses, what), rank=0) for what in (0, 1, 0)]
    report = Simulator(text, memory).run(launches)
    assert data.tolist() == [7] * 64
    assert report.findings == []


def test_ranks_do_not_wait_for_each_other():
    """Rank 1's only launch ends when rank 0's second one sets the flag."""
    wait = "SPIN: ld.acquire.sys.global.b32 %r2, [%rd2]; setp.ne.u32 %p1, %r2, 1; @%p1 bra SPIN;\n" + INCREMENT
    release = WRITE + "bar.warp.sync 0xffffffff; setp.ne.u32 %p1, %r1, 0; @!%p1 st.release.sys.global.b32 [%rd2], 1;\n"
    body = "ld.param.u32 %r8, [what]; setp.eq.u32 %p2, %r8, 2; @%p2 bra WAIT;\n" + release + "bra END; WAIT:\n" + wait
    data, report = run("add.u32 %r1, %r1, 1;", body, [(1, 2), (0, 0), (0, 1)])
    assert data[:32].tolist() == [8] * 32
    assert report.findings == []


def test_the_end_of_a_launch_orders_nothing_on_other_ranks():
    """Rank 1 reads what rank 0 wrote two launches ago, and nothing told it so."""
    _, report = run(WRITE, INCREMENT.replace("st.global.b32 [%rd3], %r2;", ""), [(0, 0), (0, 0), (1, 1)])
    assert {finding.kind for finding in report.findings} <= {"RAW race", "WAR race"}
    assert report.findings


LET, WAIT = "griddepcontrol.launch_dependents;\n", "griddepcontrol.wait;\n"
SPIN = "SPIN{0}: ld.acquire.gpu.global.b32 %r2, [%rd2]; setp.ne.u32 %p1, %r2, 1; @%p1 bra SPIN{0};\n"
RAISE = "mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @!%p1 st.release.gpu.global.b32 [%rd2], 1;\n"


def run_early(bodies: list[str], seed: int = 0) -> tuple[np.ndarray, Report]:
    """Launches of two CTAs with these bodies, all but the first early. `%rd1` points at 64 words, `%rd2` at a flag."""
    jumps = "".join(f"setp.eq.u32 %p9, %r9, {number}; @%p9 bra BODY{number};\n" for number in range(len(bodies)))
    code = "".join(f"BODY{number}:\n{body}bra END;\n" for number, body in enumerate(bodies))
    start = "ld.param.b64 %rd1, [data]; ld.param.b64 %rd2, [flag]; ld.param.u32 %r9, [what];\n" + jumps
    text = module(start + code + "END:", [".param .u64 data", ".param .u64 flag", ".param .u32 what"])
    data, flag, memory = np.zeros(64, np.uint32), np.zeros(1, np.uint32), GlobalMemory()
    addresses = memory.add(data, "data"), memory.add(flag, "flag")
    whole = range(len(bodies))
    launches = [Launch((2, 1, 1), (32, 1, 1), args=(*addresses, number), early=number > 0) for number in whole]
    return data, Simulator(text, memory, seed=seed).run(launches)


STORE = "mov.u32 %r1, %ctaid.x; shl.b32 %r1, %r1, 5; mov.u32 %r3, %tid.x; add.u32 %r1, %r1, %r3; mad.wide.u32 %rd3, %r1, 4, %rd1;\n"
STORE += "st.global.b32 [%rd3], 7;\n"
ADD = STORE.replace("st.global.b32 [%rd3], 7;", "ld.global.b32 %r2, [%rd3]; add.u32 %r2, %r2, 1; st.global.b32 [%rd3], %r2;")


def test_an_early_launch_begins_while_the_one_before_it_runs():
    """Which waits for what the early one says, and ends after that."""
    data, report = run_early([LET + SPIN.format(0) + STORE, RAISE + WAIT + ADD])
    assert data.tolist() == [8] * 64 and report.findings == []


def test_without_being_let_it_begins_at_the_end():
    data, report = run_early([STORE, WAIT + ADD, WAIT + ADD])
    assert data.tolist() == [9] * 64 and report.findings == []
    with pytest.raises(Deadlock, match="no warp can make progress"):
        run_early([SPIN.format(0), RAISE])


@pytest.mark.parametrize("seed", range(3))
def test_what_is_not_waited_for_is_a_race(seed):
    _, report = run_early([LET + STORE, ADD], seed)
    assert any("race" in finding.kind for finding in report.findings)


@pytest.mark.parametrize("seed", range(3))
def test_waiting_covers_all_launches_before_that_have_waited(seed):
    """Of three, the last; and one that does not wait breaks the chain."""
    _, report = run_early([LET + STORE, LET + WAIT, WAIT + ADD], seed)
    assert report.findings == []
    _, report = run_early([LET + SPIN.format(0) + STORE, LET, RAISE + WAIT + ADD], seed)
    assert report.findings


@pytest.mark.parametrize("seed", range(3))
def test_what_a_launch_waited_for_before_it_let_the_next_is_known_at_once(seed):
    """The third reads what the first wrote without a wait, if the second had waited everywhere when it let the third begin."""
    _, report = run_early([LET + STORE, WAIT + LET, ADD + WAIT], seed)
    assert report.findings == []
    _, report = run_early([LET + SPIN.format(0) + STORE, LET + WAIT, RAISE + ADD + WAIT], seed)
    assert report.findings
