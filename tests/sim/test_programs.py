"""Several kernels in one run: streams of different kernels, and different kernels on different ranks."""

import numpy as np
import pytest
from ptx_cases import module

from megamoe_dsl.sim import GlobalMemory, Launch, Program, SimError, Simulator, agents_needed, load

POINTER = "ld.param.b64 %rd1, [data]; mov.u32 %r1, %tid.x; mad.wide.u32 %rd3, %r1, 4, %rd1;\n"


def program(name: str, body: str, parameters: tuple[str, ...] = ("data",), shared: str = "") -> Program:
    """A kernel with one pointer per parameter; `%rd3` points at the thread's word of `data`."""
    text = module(POINTER + body, [f".param .u64 {p}" for p in parameters], shared)
    return load(text.replace(".entry kernel(", f".entry {name}("))


def launch(what: Program, *args: int, rank: int = 0, **shape) -> Launch:
    return Launch(**{"grid": (1, 1, 1), "block": (32, 1, 1), **shape}, args=args, rank=rank, program=what)


def buffers(*sizes: int) -> tuple[GlobalMemory, list[np.ndarray], list[int]]:
    memory, arrays = GlobalMemory(), [np.zeros(size, np.uint32) for size in sizes]
    return memory, arrays, [memory.add(a, f"a{i}") for i, a in enumerate(arrays)]


@pytest.mark.parametrize("seed", range(3))
def test_a_kernel_reads_what_another_wrote_before_it_in_its_stream(seed):
    """The two differ in registers, parameters and static shared memory; neither names a fence."""
    fill = program("fill", "st.global.b32 [%rd3], 7;")
    text = """ld.param.b64 %rd2, [out]; mad.wide.u32 %rd4, %r1, 4, %rd2; mov.b32 %r5, buf; mad.lo.u32 %r6, %r1, 4, %r5;
    ld.global.b32 %r2, [%rd3]; st.shared.b32 [%r6], %r2; ld.shared.b32 %r3, [%r6]; add.u32 %r3, %r3, %r1; st.global.b32 [%rd4], %r3;"""
    add = program("add", text, ("data", "out"), ".shared .align 16 .b8 buf[128];")
    memory, (_, out), (data_at, out_at) = buffers(32, 32)
    report = Simulator(None, memory, seed=seed).run([launch(fill, data_at), launch(add, data_at, out_at)])
    assert out.tolist() == [7 + i for i in range(32)]
    assert report.findings == []


RELEASE = "ld.param.b64 %rd2, [flag]; setp.eq.u32 %p1, %r1, 0; bar.warp.sync 0xffffffff; @%p1 st.release.sys.global.b32 [%rd2], 1;\n"
ACQUIRE = "ld.param.b64 %rd2, [flag]; SPIN: ld.acquire.sys.global.b32 %r2, [%rd2]; setp.eq.u32 %p1, %r2, 0; @%p1 bra SPIN;\n"
SEND = program("send", "st.global.b32 [%rd3], 5;\n" + RELEASE, ("data", "flag"))
RECEIVE = program("receive", ACQUIRE + "ld.global.b32 %r3, [%rd3]; add.u32 %r3, %r3, 1; st.global.b32 [%rd3], %r3;", ("data", "flag"))


@pytest.mark.parametrize("seed", range(3))
def test_different_kernels_on_two_ranks_synchronize(seed):
    memory, (data, _), addresses = buffers(32, 1)
    report = Simulator(None, memory, seed=seed).run([launch(RECEIVE, *addresses, rank=1), launch(SEND, *addresses)])
    assert data.tolist() == [6] * 32
    assert report.findings == []


def test_a_race_across_kernels_names_both():
    """Without the flag the two kernels race; each line is that of the kernel it is in."""
    one = program("writer", "\n\n\nst.global.b32 [%rd3], 5;")
    other = program("reader", "\nld.global.b32 %r3, [%rd3];")
    for seed in range(4):
        memory, _, addresses = buffers(32)
        (finding,) = Simulator(None, memory, seed=seed).run([launch(one, *addresses), launch(other, *addresses, rank=1)]).findings
        lines = {finding.first_kernel: finding.first_line, finding.second_kernel: finding.second_line}
        expected = {p.kernel.name: next(i.line for i in p.kernel.code if ".global" in i.opcode) for p in (one, other)}
        assert lines == expected
        assert lines["writer"] == lines["reader"] + 2
        assert f"(PTX line {expected['writer']} of writer)" in str(finding) and " of reader)" in str(finding)


def test_one_kernel_is_not_named():
    memory, _, addresses = buffers(32)
    one = program("writer", "st.global.b32 [%rd3], 5;")
    (finding,) = Simulator(None, memory).run([launch(one, *addresses, rank=rank) for rank in (0, 1)]).findings
    assert (finding.first_kernel, finding.second_kernel) == ("", "")
    assert "writer" not in str(finding)


def test_kernels_of_one_name_are_numbered():
    kernels = [program("same", f"st.global.b32 [%rd3], {value};") for value in (5, 6)]
    memory, _, addresses = buffers(32)
    launches = [launch(one, *addresses, rank=rank) for rank, one in enumerate(kernels)]
    (finding,) = Simulator(None, memory).run(launches).findings
    assert {finding.first_kernel, finding.second_kernel} == {"same (1)", "same (2)"}


def test_a_fault_names_the_kernel():
    bad = program("bad", "add.u64 %rd3, %rd3, 4096;\nst.global.b32 [%rd3], 1;")
    memory, _, addresses = buffers(32)
    with pytest.raises(SimError, match=r"out of bounds.*PTX line \d+ of bad: st\.global\.b32; rank 1"):
        Simulator(None, memory).run([launch(program("good", ""), *addresses), launch(bad, *addresses, rank=1)])


def test_a_deadlock_names_the_kernels():
    memory, _, addresses = buffers(32, 1)
    with pytest.raises(SimError, match=r"PTX line \d+ of receive: "):
        Simulator(None, memory).run([launch(program("other", ""), addresses[0]), launch(RECEIVE, *addresses)])


def test_limits_are_those_of_each_launch():
    """Static shared memory and .reqntid belong to the kernel of the launch."""
    memory, _, addresses = buffers(32)
    small, large = program("small", ""), program("large", "", shared=".shared .align 16 .b8 buf[200000];")
    Simulator(None, memory).run([launch(large, *addresses), launch(small, *addresses, dynamic_smem=200000)])
    with pytest.raises(SimError, match="large: 240000 bytes of shared memory; 232448 are available"):
        Simulator(None, memory).run([launch(small, *addresses), launch(large, *addresses, dynamic_smem=40000)])
    text = module(POINTER, [".param .u64 data"]).replace(")\n{", ")\n.reqntid 64, 1, 1\n{", 1)
    with pytest.raises(SimError, match=r"kernel: block \(32, 1, 1\) differs from .reqntid \(64, 1, 1\)"):
        Simulator(None, memory).run([launch(small, *addresses), launch(load(text), *addresses)])


def test_the_simulators_program_is_the_default():
    memory, (data,), addresses = buffers(32)
    text = module(POINTER + "ld.global.b32 %r2, [%rd3]; add.u32 %r2, %r2, 1; st.global.b32 [%rd3], %r2;", [".param .u64 data"])
    fill = program("fill", "st.global.b32 [%rd3], 7;")
    report = Simulator(text, memory).run([launch(fill, *addresses), Launch((1, 1, 1), (32, 1, 1), args=tuple(addresses))])
    assert data.tolist() == [8] * 32
    assert report.findings == []
    with pytest.raises(SimError, match="names no program"):
        Simulator(None, memory).run([Launch((1, 1, 1), (32, 1, 1), args=tuple(addresses))])


def test_programs_are_loaded_once():
    text = module(POINTER, [".param .u64 data"])
    assert load(text) is load(text)
    assert load(text) is Simulator(text, GlobalMemory()).program


def test_too_many_agents_are_refused_before_anything_is_loaded():
    """148 CTAs of 16 warps on 8 ranks: the text is not even parsed, for no simulator is needed to ask."""
    launches = [Launch((148, 1, 1), (512, 1, 1), rank=rank) for rank in range(8)]
    assert agents_needed(launches) == 8 * 148 * 16
    memory, _, _ = buffers(32)
    with pytest.raises(SimError, match=r"18944 agents for the warps alone, the limit is 16384: .*race=False"):
        Simulator(None, memory).run(launches)
    with pytest.raises(SimError, match="names no program"):
        Simulator(None, memory, race=False).run(launches)


def test_engines_beyond_the_limit_are_a_clear_error(monkeypatch):
    monkeypatch.setattr("megamoe_dsl.sim.clock.MAX_AGENTS", 1)
    one = program("init", "mov.b32 %r5, buf; mbarrier.init.shared::cta.b64 [%r5], 1;", shared=".shared .align 16 .b8 buf[128];")
    memory, _, addresses = buffers(32)
    with pytest.raises(SimError, match="2 agents so far, the limit is 1"):
        Simulator(None, memory).run([launch(one, *addresses, block=(1, 1, 1))])
