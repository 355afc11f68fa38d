"""What the parser makes of declarations."""

import numpy as np
import pytest
from ptx_cases import module, run

from megamoe_dsl.sim import GlobalMemory, Launch, SimError, Simulator
from megamoe_dsl.sim.loads_in_flight import LoadsInFlight
from megamoe_dsl.sim.parser import parse


@pytest.mark.parametrize("pointer", [".ptr .global .align 1", ".ptr .align 128", ".ptr .global", ".ptr", ""])
def test_the_alignment_of_a_pointer_parameter_is_no_symbol(pointer):
    """`1` and `128` stay numbers when a parameter is declared with that alignment."""
    text = module("ld.param.b64 %rd1, [out]; st.global.b32 [%rd1], 1; st.global.b32 [%rd1+4], 128;", [f"\n.param .u64 {pointer} out"])
    out, memory = np.zeros(2, np.uint32), GlobalMemory()
    Simulator(text, memory).run([Launch((1, 1, 1), (1, 1, 1), args=(memory.add(out, "out"),))])
    assert out.tolist() == [1, 128]
    assert parse(text).symbols == set()


def test_symbols_of_a_module():
    declared = """.global .align 1 .b8 text[4] = {37, 100, 10, 0};
    .visible .const .align 4 .f32 table[2]; .extern .global .u32 $outside;
    """
    text = module("", [".param .u64 .ptr .global .align 16 a"], declared)
    assert parse(text).symbols == {"text", "table", "$outside"}


def test_registers_of_an_unknown_type_are_a_clear_error():
    with pytest.raises(SimError, match=r"PTX line \d+: registers of type \.b4 are not supported"):
        run("", [np.zeros(1, np.uint32)], declarations=".reg .b4 %v;")


def test_vector_registers():
    text = """{ .reg .v4 .s32 q; .reg .v2 .f32 h;
    mov.s32 q.x, %r50; mov.s32 q.y, 5; mov.s32 q.z, -1; mov.s32 q.w, 7;
    mov.f32 h.x, 0f3F800000; mad.wide.u32 %rd1, %r50, 16, %rd50; { .reg .v4 .s32 q; mov.s32 q.x, 0; }
    st.global.v4.s32 [%rd1], q; mov.b32 %r1, h.x;
    st.global.b32 [%rd1+4], %r1; }"""
    out = np.zeros((32, 4), np.int32)
    run(text, [out])
    assert (out == np.stack([np.arange(32), np.full(32, 0x3F800000), np.full(32, -1), np.full(32, 7)], axis=1)).all()


def test_places_in_shared_memory():
    """One after the other, aligned; an array without a size takes none, and a variable that is no array one element."""
    shared = ".shared .b8 a; .shared .align 8 .b8 b[3]; .shared .b64 c; .shared .b32 d; .extern .shared .align 16 .b8 rest[];"
    found = parse(module("", [".param .u64 p"], shared))
    assert found.shared == {"a": 0, "b": 8, "c": 16, "d": 24, "rest": 32} and found.static_smem == 32


def test_loads_that_may_be_under_way():
    """From a load to the first use of its value, through copies, branches and loops, at what releases something or shuffles."""
    body = """ld.shared.b32 %r1, [%r9]; bar.sync 0;
    ld.shared.b32 %r2, [%r9+4]; mov.b32 %r3, %r2;
    @%p1 bra USED; bar.sync 1; bra TOP;
    USED: add.u32 %r4, %r3, 1; bar.sync 2;
    TOP: bar.sync 3; add.u32 %r4, %r1, 1; shfl.sync.idx.b32 %r5, %r4, 0, 31, -1;
    ld.shared.b32 %r6, [%r9+8]; @%p2 bra TOP; ld.acquire.cta.global.u32 %r7, [%rd1]; add.u32 %r8, %r6, 1; bar.sync 4; exit; bar.sync 5;"""
    kernel = parse(module(body.replace("; ", ";\n"), [".param .u64 p"]))
    loads, line = LoadsInFlight(kernel), {ins.operands[0]: ins.line for ins in kernel.code if ins.parts[0] == "bar"}
    first, second, third = (ins.line for ins in loads.loads)
    found = {
        barrier: {load for load in (first, second, third) if loads.kinds.get(load) in loads.by_line.get(at, ())}
        for barrier, at in line.items()
    }
    assert found == {"0": {first}, "1": {first, second}, "2": {first}, "3": {first, second, third}, "4": {second}, "5": set()}
