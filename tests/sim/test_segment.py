"""Arithmetic that is done together: what a program of many instructions does is what numpy does with one after the other."""

import random
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from megamoe_dsl.sim.lanes import Lanes, Mask
from megamoe_dsl.sim.operands import Binder, reader
from megamoe_dsl.sim.ops import Inline, build, load_families
from megamoe_dsl.sim.ops.floating import _FUNCTIONS, _function
from megamoe_dsl.sim.parser import ParsedKernel, PtxInstruction, parse
from megamoe_dsl.sim.program import Program
from megamoe_dsl.sim.segment import Live, Segment, lane_program
from megamoe_dsl.sim.values import Value

OPERATIONS = (
    "add.s32 R, R, R;", "add.s32 R, R, 7;", "add.s64 L, L, L;", "add.s64 L, L, 7;", "mul.wide.s32 L, R, R;", "shl.b32 R, R, 3;",
    "cvt.u32.u64 R, L;", "fma.rn.f32 F, F, F, F;", "fma.rn.f32 F, F, 0f3f000000, F;", "mul.f32 F, F, F;", "mov.f32 F, F;", "mov.b32 R, F;",
    "cvt.rn.bf16x2.f32 R, F, F;", "cvt.rn.satfinite.e4m3x2.f32 H, F, F;", "ex2.approx.ftz.f32 F, F;", "setp.lt.s32 P, R, R;",
    "selp.b32 R, R, R, P;", "@P add.s32 R, R, R;", "@!P mov.f32 F, F;", "prmt.b32 R, R, R, 0x3715;", "mov.b64 {R, R}, L;",
    "mov.u32 R, %laneid;", "xor.b32 R, R, R;", "dp4a.u32.u32 R, R, R, R;",
)  # fmt: skip
MORE = (
    "sub.s32 R, R, R;", "sub.s64 L, L, L;", "mul.lo.s32 R, R, R;", "mul.hi.u32 R, R, R;", "mad.lo.s32 R, R, R, R;",
    "mul.wide.u32 L, R, R;", "shl.b32 R, R, R;", "shl.b64 L, L, R;", "shr.s32 R, R, R;", "shr.u32 R, R, 5;", "shr.s64 L, L, R;",
    "shr.u64 L, L, 40;", "shr.s16 H, H, R;", "and.b32 R, R, R;", "or.b64 L, L, L;", "xor.b16 H, H, H;", "not.b32 R, R;",
    "not.b64 L, L;", "not.pred P, P;", "neg.s32 R, R;", "neg.f32 F, F;", "abs.f32 F, F;", "abs.s32 R, R;", "cnot.b32 R, R;",
    "and.pred P, P, P;", "or.pred P, P, P;", "xor.pred P, P, P;", "add.s16 H, H, H;", "mul.lo.s16 H, H, H;", "setp.gt.u32 P, R, R;",
    "setp.ge.s64 P, L, L;", "setp.eq.b64 P, L, 0;", "setp.le.u16 P, H, H;", "setp.lt.f32 P, F, F;", "setp.neu.f32 P, F, F;",
    "setp.ne.and.s32 P, R, R, P;", "setp.lt.s32 P|P, R, R;", "selp.b64 L, L, L, P;", "selp.f32 F, F, 0f00000000, P;",
    "cvt.s64.s32 L, R;", "cvt.u64.u32 L, R;", "cvt.u16.u32 H, R;", "cvt.s32.s16 R, H;", "cvt.s32.s8 R, R;", "cvt.rn.f32.s32 F, R;",
    "min.s32 R, R, 9;", "max.f32 F, F, F;", "sub.f32 F, F, F;", "div.rn.f32 F, F, F;", "mov.b64 L, {R, R};", "mov.b32 F, R;",
    "bfe.s32 R, R, 3, 9;", "popc.b32 R, R;", "mov.b128 B, {L, L};", "mov.b128 {L, L}, B;", "@P mov.b128 B, B;",
    "lop3.b32 R, R, R, R, 0xCA;", "min.u32 R, R, R;", "max.s32 R, R, R;",
    "max.s16 H, H, H;", "min.f32 F, F, F;", "min.NaN.f32 F, F, F;", "max.f32 F, F, F, F;", "ex2.approx.ftz.f32 F, F;",
    "mul.ftz.f32 F, F, F;", "cvt.rn.satfinite.relu.e5m2x2.f32 H, F, F;", "cvt.rn.f16x2.f32 R, F, F;", "cvt.rn.relu.bf16x2.f32 R, F, F;",
    "add.f32.bf16 F, H, F;", "cvt.f32.bf16 F, H;", "add.rn.f32x2 L, L, L;", "fma.rn.f32x2 L, L, L, L;", "set.lt.u32.s32 R, R, R;",
)  # fmt: skip
HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k()\n{\n"
REGISTERS = ".reg .pred P<4>;\n.reg .b16 H<4>;\n.reg .b32 R<9>;\n.reg .f32 F<9>;\n.reg .b64 L<5>;\n.reg .b128 B<2>;\n"
SPECIAL = np.array([0.0, -0.0, 1e-40, -1e-42, np.inf, -np.inf, np.nan, 448.0, 464.0, 1e30, 3.4e38, 1 / 512, 1.5, -2.5], np.float32)
Code = list[tuple[PtxInstruction, Inline]]
SIZES = {"P": 4, "H": 4, "R": 9, "F": 9, "L": 5, "B": 2}


def kernel(rng: random.Random, count: int, operations: Sequence[str] = OPERATIONS) -> ParsedKernel:
    """Random instructions; an unrolled loop, as compilers make them, repeats some with other registers."""
    lines: list[str] = []
    while len(lines) < count:
        pattern = [rng.choice(operations) for _ in range(rng.randint(1, 4))]
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


def segment_of(binder: Binder, code: Code) -> Segment:
    segment = Segment(binder, every_register(binder))
    for ins, item in code:
        segment.add(ins, item)
    return segment


def interpreted(binder: Binder, code: Code, registers: list[Lanes], mask: Mask) -> list[Lanes]:
    """The registers after instructions as one program."""
    after = list(registers)
    with np.errstate(all="ignore"):
        lane_program(segment_of(binder, code), mask is not None)(None, after, *([] if mask is None else [mask]))
    return after


def by_numpy(binder: Binder, code: Code, registers: list[Lanes], mask: Mask) -> list[Lanes]:
    """The registers after one instruction after the other, by numpy."""
    after = list(registers)
    for ins, item in code:
        lanes = np.ones(32, np.bool_) if mask is None else mask
        if ins.predicate is not None:
            lanes = lanes & (after[binder.index[ins.predicate]] ^ ins.negated)
        with np.errstate(all="ignore"):
            results = [(binder.index[name], reader(value)(SimpleNamespace(R=after))) for name, value in item.assignments]  # type: ignore[arg-type]
        for i, result in results:
            after[i] = np.where(lanes, reader(Value(result, result.dtype.type).to(binder.storage[i]))(None), after[i])  # type: ignore[arg-type]
    return after


def built(parsed: ParsedKernel, binder: Binder) -> Code:
    """All instructions but the last."""
    load_families()
    items = [(ins, build(ins, binder)) for ins in parsed.code[:-1]]
    assert all(isinstance(item, Inline) for _, item in items)
    return items  # type: ignore[return-value]


def random_registers(binder: Binder, values: np.random.Generator) -> list[Lanes]:
    """Lanes of every register."""
    registers: list[Lanes] = []
    for kind in binder.storage:
        if kind is np.bool_:
            registers.append(values.random(32) < 0.5)
        elif kind is np.float32:
            numbers = values.standard_normal(32).astype(np.float32) * np.float32(2) ** values.integers(-30, 9, 32).astype(np.float32)
            registers.append(np.where(values.random(32) < 0.3, values.choice(SPECIAL, 32), numbers))
        else:
            registers.append(values.integers(0, 256, 32 * np.dtype(kind).itemsize, dtype=np.uint8).view(kind))
    return registers


@pytest.mark.parametrize("seed", range(24))
def test_together_as_numpy_one_after_the_other(seed: int) -> None:
    rng, values = random.Random(seed), np.random.default_rng(seed)
    parsed = kernel(rng, 80, OPERATIONS + MORE)
    binder = Binder(parsed)
    code, registers = built(parsed, binder), random_registers(binder, values)
    gaps = [np.repeat(one, 2)[::2] for one in registers]  # arrays whose lanes do not follow each other
    for mask in (None, values.random(32) < 0.5, (values.random(64) < 0.5)[::2]):
        wanted = by_numpy(binder, code, registers, mask)
        for given in (registers, gaps):
            for name, one, other in zip(binder.index, interpreted(binder, code, given, mask), wanted, strict=True):
                assert (one.dtype, one.shape) == (other.dtype, (32,)), name
                assert one.tobytes() == other.tobytes() or np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), name


def test_every_operation_alone() -> None:
    values, rng = np.random.default_rng(0), random.Random(0)
    for text in OPERATIONS + MORE:
        binder = Binder(parsed := kernel(rng, 1, [text]))
        code, registers = built(parsed, binder)[:1], random_registers(binder, values)
        for one, other in zip(interpreted(binder, code, registers, None), by_numpy(binder, code, registers, None), strict=True):
            assert one.dtype == other.dtype and one.tobytes() == other.tobytes(), text


def test_registers_of_another_size_are_refused() -> None:
    binder = Binder(parsed := parse(HEAD + REGISTERS + "add.s32 R1, R0, 1;\nret;\n}\n", None))
    registers = random_registers(binder, np.random.default_rng(0))
    registers[binder.index["R0"]] = np.zeros(31, np.uint32)
    with pytest.raises(TypeError, match="32 lanes of 4 bytes"):
        interpreted(binder, built(parsed, binder), registers, None)


def test_equal_calls_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of unrolled instructions; those that need the others' results come after them."""
    calls: list[int] = []
    monkeypatch.setitem(_FUNCTIONS, "ex2", lambda x: calls.append(len(x)) or np.exp2(x))
    body = "".join(f"ex2.approx.f32 F{k}, F{k};\nmul.f32 F{k}, F{k}, F8;\nex2.approx.f32 F{k}, F{k};\n" for k in range(8))
    parsed = parse(HEAD + REGISTERS + body + "ret;\n}\n", None)
    binder = Binder(parsed)
    _function.cache_clear()
    code, registers = built(parsed, binder), random_registers(binder, np.random.default_rng(0))
    interpreted(binder, code, registers, None)
    _function.cache_clear()
    assert calls == [8 * 32, 8 * 32]


def test_only_what_is_read_elsewhere_is_written() -> None:
    body = (
        "add.s32 R1, R0, 1;\nadd.s32 R2, R1, 1;\n@P0 add.s32 R3, R2, 1;\nst.global.b32 [L0], R3;\nadd.s32 R4, R2, 1;\nadd.s32 R5, R4, 1;\n"
    )
    program = Program(parse(HEAD + REGISTERS + body + "bra NEXT;\nNEXT:\nadd.s32 R6, R5, R6;\nret;\n}\n", None))
    named = [{name for name, i in program.binder.index.items() if i in live} for live in program.live]
    assert named == [{"P0", "R0", "R2", "R3", "L0", "R5", "R6"}, {"P0", "R0", "R3", "L0", "R5", "R6"}]
