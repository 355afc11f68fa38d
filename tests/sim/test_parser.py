"""What the parser makes of declarations."""

import numpy as np
import pytest
from ptx_cases import module, run

from megamoe_dsl.sim import GlobalMemory, Launch, SimError, Simulator
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
    with pytest.raises(SimError, match=r"PTX line \d+: registers of type \.v4 are not supported"):
        run("", [np.zeros(1, np.uint32)], declarations=".reg .v4 .f32 %v;")
