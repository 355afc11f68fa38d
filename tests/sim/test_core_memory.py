"""Loads, stores, shared and local memory, atomics, and the errors they raise."""

import numpy as np
import pytest
from ptx_cases import module, run

from megamoe_dsl.sim import Assumptions, GlobalMemory, Launch, SimError, Simulator
from megamoe_dsl.sim.host.arrays import visible_memory


def aligned(words: int) -> np.ndarray:
    """32-bit words at a multiple of 64 bytes, as device allocations are."""
    raw = np.zeros(4 * words + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + 4 * words].view(np.uint32)


SHARED = ".shared .align 16 .b8 buf[4096];"


def test_vector_loads_and_stores_of_every_width():
    source, out = aligned(32 * 8), aligned(32 * 8)
    source[:] = np.arange(32 * 8)
    run(
        """mad.wide.u32 %rd1, %r50, 32, %rd50; mad.wide.u32 %rd2, %r50, 32, %rd51;
        ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];
        ld.global.nc.L1::no_allocate.L2::128B.v2.b64 {%rd3, %rd4}, [%rd1+16];
        st.global.v8.b32 [%rd2], {%r4, %r3, %r2, %r1, %r4, %r3, %r2, %r1};
        st.global.v2.b64 [%rd2+16], {%rd3, %rd4};""",
        [source, out],
    )
    rows = source.reshape(32, 8)
    np.testing.assert_array_equal(out.reshape(32, 8), rows[:, [3, 2, 1, 0, 4, 5, 6, 7]])


def test_sub_word_loads_extend_by_type():
    source, out = np.array([-1, -2, 3, 4] * 8, np.int8), np.zeros((32, 2), np.int32)
    run(
        """cvt.u64.u32 %rd1, %r50; add.s64 %rd1, %rd1, %rd50; mad.wide.u32 %rd2, %r50, 8, %rd51;
        ld.global.s8 %r1, [%rd1]; ld.global.u8 %r2, [%rd1]; st.global.v2.b32 [%rd2], {%r1, %r2};""",
        [source, out],
    )
    np.testing.assert_array_equal(out, np.stack([source.astype(np.int32), source.view(np.uint8).astype(np.int32)], axis=1))


def test_shared_memory_through_generic_addresses_and_predicated_lanes():
    out = np.full(32, 9, np.uint32)
    run(
        """mov.b32 %r1, buf; mad.lo.u32 %r2, %r50, 4, %r1; st.shared.b32 [%r2], %r50;
        cvt.u64.u32 %rd1, %r2; cvta.shared.u64 %rd2, %rd1; ld.b32 %r3, [%rd2]; add.u32 %r3, %r3, 1; st.b32 [%rd2], %r3;
        setp.lt.u32 %p1, %r50, 5; mad.wide.u32 %rd3, %r50, 4, %rd50; bar.warp.sync -1;
        @%p1 ld.shared.b32 %r4, [%r2]; @%p1 st.global.b32 [%rd3], %r4; @!%p1 st.global.b32 [%rd3], 0;""",
        [out],
        shared=SHARED,
    )
    assert out.tolist() == [1, 2, 3, 4, 5] + [0] * 27


def test_cluster_shared_memory_through_mapa():
    out = np.zeros(2, np.uint32)
    text = """
    mov.u32 %r1, %cluster_ctarank; mov.b32 %r2, buf; xor.b32 %r3, %r1, 1; mapa.shared::cluster.u32 %r4, %r2, %r3;
    add.u32 %r5, %r1, 100; setp.eq.u32 %p1, %r50, 0; @%p1 st.shared::cluster.b32 [%r4], %r5;
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    ld.shared.b32 %r6, [%r2]; mad.wide.u32 %rd1, %r1, 4, %rd50; @%p1 st.global.b32 [%rd1], %r6;
    """
    report = run(text, [out], grid=2, cluster=2, shared=SHARED)
    assert out.tolist() == [101, 100]
    assert report.findings == []


def test_local_memory_is_private_to_a_thread():
    out = np.zeros(32, np.uint32)
    text = """
    mov.b64 %rd1, depot; cvta.local.u64 %rd2, %rd1; st.local.b32 [%rd1+4], %r50; st.b32 [%rd2+8], 7;
    ld.b32 %r1, [%rd2+4]; ld.local.b32 %r2, [%rd1+8]; add.u32 %r1, %r1, %r2; mad.wide.u32 %rd3, %r50, 4, %rd50; st.global.b32 [%rd3], %r1;
    """
    run(text, [out], declarations=".local .align 8 .b8 depot[16];")
    assert out.tolist() == [i + 7 for i in range(32)]


ATOMICS = [
    ("atom.global.add.u32 %r1, [%rd50], 2;", 5, 5 + 64, lambda i: 5 + 2 * i),
    ("atom.global.max.s32 %r1, [%rd50], %r50;", 7, 31, lambda i: max(7, i - 1) if i else 7),
    ("atom.global.exch.b32 %r1, [%rd50], %r50;", 9, 31, lambda i: i - 1 if i else 9),
    ("atom.global.cas.b32 %r1, [%rd50], 0, 5;", 0, 5, lambda i: 5 if i else 0),
    ("atom.global.or.b32 %r1, [%rd50], 4; mov.b32 %r1, 0;", 1, 5, lambda i: 0),
    ("atom.global.inc.u32 %r1, [%rd50], 3;", 0, 0, lambda i: i % 4),
]


@pytest.mark.parametrize(("text", "before", "after", "returned"), ATOMICS)
def test_atomics_return_the_old_value(text, before, after, returned):
    cell, out = np.array([before], np.uint32), np.zeros(32, np.uint32)
    run(text + "mad.wide.u32 %rd1, %r50, 4, %rd51; st.global.b32 [%rd1], %r1;", [cell, out])
    assert cell[0] == after
    assert out.tolist() == [returned(i) for i in range(32)]


def test_reductions_on_floats_and_64_bits():
    cells, wide = np.zeros(4, np.float32), np.zeros(1, np.uint64)
    run(
        """red.global.add.f32 [%rd50], 0f3F000000; red.global.add.u64 [%rd51], 4294967297; mov.b32 %r1, 0x3F803F80;
        red.global.add.noftz.bf16x2 [%rd50+4], %r1;""",
        [cells, wide],
    )
    assert cells[0] == 16.0
    assert wide[0] == 32 * 4294967297
    assert cells[1:2].view(np.uint32)[0] == 0x42004200  # 32.0 twice


def test_atomics_on_shared_memory():
    out = np.zeros(1, np.uint32)
    run(
        """mov.b32 %r1, buf; setp.eq.u32 %p1, %r50, 0; @%p1 st.shared.b32 [%r1], 0; bar.sync 0; atom.shared.add.u32 %r2, [%r1], 1;
        bar.sync 0;
        @%p1 ld.shared.b32 %r3, [%r1]; @%p1 st.global.b32 [%rd50], %r3;""",
        [out],
        block=96,
        shared=SHARED,
    )
    assert out[0] == 96


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ld.global.b32 %r1, [%rd50+4096];", "out of bounds"),
        ("ld.global.b32 %r1, [%rd50+2];", "misaligned"),
        ("st.global.v2.b32 [%rd50+4], {%r1, %r2};", "misaligned"),
        ("ld.global.b32 %r1, [%rd50];", "uninitialized global memory: a0@rank0\\+0"),
        ("mov.b32 %r1, buf; ld.shared.b32 %r2, [%r1+8];", "uninitialized shared memory.*smem\\+8"),
        ("mov.b32 %r1, buf; st.shared.b32 [%r1+4096], 0;", "shared access out of bounds"),
        ("mov.b32 %r1, buf; mapa.shared::cluster.u32 %r2, %r1, 3; st.shared::cluster.b32 [%r2], 0;", "no such CTA"),
        ("trap;", "trap"),
        ("{ // callseq 0, 0\n.param .b64 p; call.uni __assertfail, (p);\n} // callseq 0", "call of __assertfail"),
    ],
)
def test_errors_name_the_line_and_the_warp(text, message):
    with pytest.raises(SimError, match=message) as error:
        run(text, [np.zeros(64, np.uint32)], shared=SHARED, initialized=False)
    assert "rank 0 CTA (0,0,0) warp 0" in str(error.value)
    assert "PTX line" in str(error.value)


def test_errors_name_the_python_source_when_the_ptx_has_it():
    text = module(".loc 1 42 0\ntrap;", []).replace(".target", '.file 1 "/somewhere/role.py"\n.target')
    with pytest.raises(SimError, match=r"role\.py:42"):
        Simulator(text, GlobalMemory()).run([Launch((1, 1, 1), (32, 1, 1))])


def test_unknown_instructions_and_wrong_arguments_are_rejected_at_once():
    with pytest.raises(SimError, match=r"unknown instruction frobnicate\.b32"):
        Simulator(module("frobnicate.b32 %r1;", []), GlobalMemory())
    simulator = Simulator(module("mov.b32 %r1, 0;", [".param .u32 n"]), GlobalMemory())
    with pytest.raises(SimError, match="takes 1 arguments, got 0"):
        simulator.run([Launch((1, 1, 1), (32, 1, 1))])
    with pytest.raises(SimError, match="shared memory"):
        simulator.run([Launch((1, 1, 1), (32, 1, 1), dynamic_smem=300_000, args=(1,))])


def test_writes_to_read_only_buffers_and_overlapping_buffers_are_errors():
    memory, data = GlobalMemory(), np.zeros(8, np.uint32)
    address = memory.add(data, "weights", read_only=True)
    with pytest.raises(SimError, match="overlaps"):
        memory.add(data[2:], "again")
    text = module("ld.param.b64 %rd1, [a]; st.global.b32 [%rd1], 1;", [".param .u64 a"])
    with pytest.raises(SimError, match="read-only buffer weights"):
        Simulator(text, memory).run([Launch((1, 1, 1), (1, 1, 1), args=(address,))])


def test_parameters_of_several_sizes_and_aggregates():
    out = np.zeros(4, np.uint32)
    memory = GlobalMemory()
    address = memory.add(out, "out")
    parameters = [".param .u8 small", ".param .align 8 .b8 block[12]", ".param .u64 a", ".param .u32 last"]
    body = """ld.param.b64 %rd1, [a]; ld.param.u8 %r1, [small]; ld.param.b32 %r2, [block+8]; ld.param.b32 %r3, [last];
    mov.b64 %rd2, block; cvta.param.u64 %rd2, %rd2; ld.b32 %r4, [%rd2+4]; st.global.v4.b32 [%rd1], {%r1, %r2, %r3, %r4};"""
    block = np.array([10, 11, 12], np.uint32).tobytes()
    Simulator(module(body, parameters), memory).run([Launch((1, 1, 1), (1, 1, 1), args=(200, block, address, -1))])
    assert out.tolist() == [200, 12, 0xFFFFFFFF, 11]


def test_uninitialized_shared_memory_may_be_loaded_when_told():
    """It gives NaNs and a warning; global memory stays an error."""
    out = np.zeros(32, np.float32)
    body = "mov.b32 %r1, buf; ld.shared.b32 %r2, [%r1+8]; mad.wide.u32 %rd1, %r50, 4, %rd50; st.global.b32 [%rd1], %r2;"
    report = run(body, [out], shared=SHARED, assumptions=Assumptions(load_uninitialized=True))
    assert np.isnan(out).all()
    assert [text.split(": ")[1] for text in report.warnings] == ["load of uninitialized shared memory"]
    with pytest.raises(SimError, match="uninitialized global memory"):
        run("ld.global.b32 %r2, [%rd50];", [out], initialized=False, assumptions=Assumptions(load_uninitialized=True))


def test_neighbors_share_no_memory():
    """Arrays that touch are two buffers, of which one may be written; views that overlap are one, of which no part may."""
    whole = np.zeros(8, np.uint32)
    one, other, both = whole[:4], whole[4:], whole[3:5]
    for output in (one, other):
        memory = visible_memory([("one", 0, one), ("other", 1, other)], [output])
        found = [(a.name, a.rank, a.base - whole.ctypes.data, len(a.data), a.valid is None) for a in memory.allocations]
        assert found == [("one", 0, 0, 16, output is other), ("other", 1, 16, 16, output is one)]
        with pytest.raises(SimError, match=r"outputs\[0\]: must be an argument or one of buffers, and share no memory with another"):
            visible_memory([("one", 0, one), ("other", 1, other), ("both", 0, both)], [output])
    (merged,) = visible_memory([("both", 0, both), ("one", 1, one)]).allocations
    assert (merged.name, merged.rank, len(merged.data)) == ("one", 1, 20)
