"""Ways in which pairs may decode that a GPU is to time (studies/pair_variants.py): each has the bits of the kernel."""

from __future__ import annotations

import pytest
from mega_moe_runs import Layer, artifact
from sm90_runs import config, hopper_case, problem

import pair_variants
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.sass.listing import Instruction
from sweep import rarely

PAIRS = {"recipe": "fp8xmxfp4", "hidden": 512, "intermediate": 256, "num_ranks": 1, "num_experts": 1, "topk": 1}


@pytest.mark.parametrize("way", ["late_even_first", "mid224", *map(rarely, ("late", "even_first", "decode_first", "swap", "ahead216"))])
def test_its_bits_are_those_of_the_kernel(way: str) -> None:
    """Race detector on; more K blocks than stages, other instructions than those of the kernel."""
    moe = problem(140, **PAIRS)
    chosen = config(moe, block_m=128, cluster=2, num_sms=2, num_stages=2)
    case = hopper_case(moe, (140,), 0, exact=False)
    with pair_variants.compiled_as(way):
        compiled = compile_kernel(chosen)
    assert compiled.ptx != artifact(chosen).ptx
    assert [one.unequal for one in Layer.of(compiled, case).check(case)] == [0]


@pytest.mark.sweep
def test_what_is_swapped_in_without_a_change_is_the_kernels_loop() -> None:
    """So that the others differ in what they are to differ in."""
    chosen = config(problem(140, **PAIRS), block_m=128, cluster=2, num_sms=2, num_stages=2)
    own = artifact(chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*pair_variants.of_loop())
        same = compile_kernel(chosen)
    loops = [[one.opcode for one in pair_variants.k_loop(compiled.listing)] for compiled in (own, same)]
    assert loops[0] == loops[1]


def listed(*texts: str) -> list[Instruction]:
    """Instructions of an operation and its operands."""
    return [Instruction(0, "", operation, operands, None, None, 0) for operation, operands in (text.split(" ", 1) for text in texts)]


@pytest.mark.parametrize(
    ("texts", "clocks"),
    [
        (("FFMA R138, R26, R212, R138",), 3),
        (("FFMA R139, R25, R175.reuse, R139", "FFMA R140, R24, R175, R140"), 5),
        (("FFMA R139, R24, R175.reuse, R139", "UIADD3 UR4, UR5, 0x1, URZ", "FFMA R140, R25, R175, R140"), 3),
        (("FFMA R139, R24, R175.reuse, R139", "IMAD R1, R2, R3, R4", "FFMA R140, R25, R175, R140"), 4),
        (("FFMA R2, R4, R6, RZ",), 2),
        (("IMAD R2, R4, R6, R8",), 0),
    ],
)
def test_reads(texts: tuple[str, ...], clocks: int) -> None:
    """The operand that is written does not count, nor does what the instruction before has read and keeps."""
    assert pair_variants.reads(listed(*texts)) == clocks
