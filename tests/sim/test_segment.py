"""Arithmetic that is generated together: what many instructions do at once is what they do one after the other."""

import random

import numpy as np
import pytest

from megamoe_dsl.sim.lanes import Lanes, Mask
from megamoe_dsl.sim.operands import Binder
from megamoe_dsl.sim.ops import Inline, build, load_families
from megamoe_dsl.sim.parser import ParsedKernel, PtxInstruction, parse
from megamoe_dsl.sim.program import Program
from megamoe_dsl.sim.segment import Live, Segment

OPERATIONS = (
    "add.s32 R, R, R;", "add.s32 R, R, 7;", "add.s64 L, L, L;", "add.s64 L, L, 7;", "mul.wide.s32 L, R, R;", "shl.b32 R, R, 3;",
    "cvt.u32.u64 R, L;", "fma.rn.f32 F, F, F, F;", "fma.rn.f32 F, F, 0f3f000000, F;", "mul.f32 F, F, F;", "mov.f32 F, F;", "mov.b32 R, F;",
    "cvt.rn.bf16x2.f32 R, F, F;", "cvt.rn.satfinite.e4m3x2.f32 H, F, F;", "ex2.approx.ftz.f32 F, F;", "setp.lt.s32 P, R, R;",
    "selp.b32 R, R, R, P;", "@P add.s32 R, R, R;", "@!P mov.f32 F, F;", "prmt.b32 R, R, R, 0x3715;", "mov.b64 {R, R}, L;",
    "mov.u32 R, %laneid;", "xor.b32 R, R, R;", "dp4a.u32.u32 R, R, R, R;",
)  # fmt: skip
HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k()\n{\n"
REGISTERS = ".reg .pred P<4>;\n.reg .b16 H<4>;\n.reg .b32 R<9>;\n.reg .f32 F<9>;\n.reg .b64 L<5>;\n"
SIZES = {"P": 4, "H": 4, "R": 9, "F": 9, "L": 5}


def kernel(rng: random.Random, count: int) -> ParsedKernel:
    """Random instructions; an unrolled loop, as compilers make them, repeats some with other registers."""
    lines: list[str] = []
    while len(lines) < count:
        pattern = [rng.choice(OPERATIONS) for _ in range(rng.randint(1, 4))]
        for _ in range(rng.choice((1, 3, 12))):
            for line in pattern:
                opcode, *rest = line.split(" ", 2 if line.startswith("@") else 1)
                operands = "".join(f"{c}{rng.randrange(SIZES[c])}" if c in SIZES else c for c in rest[-1])
                guard = f"@{'!' if '!' in opcode else ''}P{rng.randrange(4)} {rest[0]} " if line.startswith("@") else f"{opcode} "
                lines.append(guard + operands)
    return parse(HEAD + REGISTERS + "\n".join(lines) + "\nret;\n}\n", None)


def every_register(binder: Binder) -> Live:
    """As if something else read them all."""
    return Live(set(range(len(binder.storage))), set(range(len(binder.storage))))


def run(binder: Binder, parts: list[list[tuple[PtxInstruction, Inline]]], registers: list[Lanes], mask: Mask) -> list[Lanes]:
    """The registers after these segments."""
    after = list(registers)
    for part in parts:
        segment = Segment(binder, every_register(binder))
        for ins, item in part:
            segment.add(ins, item)
        source = ["def unit(w, R, m):", *segment.source(mask is not None), " return"]
        exec("\n".join(source), binder.names)
        with np.errstate(all="ignore"):
            binder.names["unit"](None, after, mask)
    return after


@pytest.mark.parametrize("seed", range(12))
def test_together_as_one_after_the_other(seed: int) -> None:
    load_families()
    rng, values = random.Random(seed), np.random.default_rng(seed)
    parsed = kernel(rng, 60)
    binder = Binder(parsed)
    code: list[tuple[PtxInstruction, Inline]] = []
    for ins in parsed.code[:-1]:
        item = build(ins, binder)
        assert isinstance(item, Inline)
        code.append((ins, item))
    registers: list[Lanes] = []
    for kind in binder.storage:
        if kind is np.bool_:
            registers.append(values.random(32) < 0.5)
        elif kind is np.float32:
            registers.append(values.standard_normal(32).astype(np.float32))
        else:
            registers.append(values.integers(0, 256, 32 * np.dtype(kind).itemsize, dtype=np.uint8).view(kind))
    for mask in (None, values.random(32) < 0.5):
        together = run(binder, [code], registers, mask)
        apart = run(binder, [[one] for one in code], registers, mask)
        for name, one, other, before in zip(binder.index, together, apart, registers, strict=True):
            assert (one.dtype, one.shape) == (before.dtype, (32,)), name
            assert one.tobytes() == other.tobytes() or np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), name
            if mask is not None:
                assert one[~mask].tobytes() == before[~mask].tobytes(), name


def test_unrolled_operations_become_one() -> None:
    body = "".join(f"mul.f32 F{k}, F{k}, F8;\nadd.f32 F{k}, F{k}, 0f3F800000;\n" for k in range(8))
    parsed = parse(HEAD + REGISTERS + body + "ret;\n}\n", None)
    load_families()
    binder = Binder(parsed)
    segment = Segment(binder, every_register(binder))
    for ins in parsed.code[:-1]:
        item = build(ins, binder)
        assert isinstance(item, Inline)
        segment.add(ins, item)
    source = "\n".join(segment.source(False))
    assert (source.count(" * "), source.count(" + ")) == (1, 1)
    assert source.count("reshape") == 1  # products are used together alone


def test_only_what_is_read_elsewhere_is_written() -> None:
    body = (
        "add.s32 R1, R0, 1;\nadd.s32 R2, R1, 1;\n@P0 add.s32 R3, R2, 1;\nst.global.b32 [L0], R3;\nadd.s32 R4, R2, 1;\nadd.s32 R5, R4, 1;\n"
    )
    program = Program(parse(HEAD + REGISTERS + body + "bra NEXT;\nNEXT:\nadd.s32 R6, R5, R6;\nret;\n}\n", None))
    named = [{name for name, i in program.binder.index.items() if i in live} for live in program.live]
    assert named == [{"P0", "R0", "R2", "R3", "L0", "R5", "R6"}, {"P0", "R0", "R3", "L0", "R5", "R6"}]
