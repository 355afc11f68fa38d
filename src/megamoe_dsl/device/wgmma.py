"""Warpgroup MMA of SM90 (PTX ISA, wgmma): tiles of FP8 or BF16 from shared memory, accumulated in registers.

The accumulator of a group in flight must not be touched: `issue` gives values that only `wait` may take, and `wait` gives them back ready.
Both are single inline blocks over all registers, so that no compiler can put a move between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Float32, Int64, Uint32
from cutlass._mlir import ir as _ir
from cutlass._mlir.dialects import llvm

from ..hardware.operand_tile import BOX_BYTES, MMA_K_BYTES, ROW_BYTES

OPERAND_HIGH = 0x40000040  # SMEM descriptor, high word: SW128 in bits 62-63, SBO 1024
ADDRESS = 0x3FFF  # of a SMEM descriptor
K_STEP = MMA_K_BYTES // 16  # of a SMEM descriptor
STEPS = ROW_BYTES // MMA_K_BYTES  # wgmmas of a K block
ELEMENTS = {"e4m3": 32, "bf16": 16}  # of A and B: their K of an instruction
MN_K_STEP = K_STEP * ELEMENTS["bf16"] * ROW_BYTES // MMA_K_BYTES
MnMajor = tuple[bool, bool]
"""Whether A, and B, are MN-major, which elements of a byte cannot be: rows of shared memory are K."""
K_MAJOR = False, False


def descriptor(low: Any, mn_major: bool = False) -> Any:
    """Descriptor of a K-major SW128 tile, or of an MN-major one of `K_ROWS` rows; `low` is its shared address / 16.

    A shared address has the CTA's place in its cluster above its 18 bits, where an MN-major one has the bytes from 64 columns to the next
    (LBO); a K-major one has nothing there."""
    if mn_major:
        return (Int64(OPERAND_HIGH) << 32) | Int64(Uint32(low) & Uint32(ADDRESS) | Uint32(BOX_BYTES // 16 << 16))
    return (Int64(OPERAND_HIGH) << 32) | Int64(Uint32(low))


ir: Any = _ir  # built at run time, so that type checkers see no attributes


def _floats(asm: str, constraints: str, operands: list[Any], count: int) -> tuple[Any, ...]:
    result = ir.Type.parse("!llvm.struct<(" + ", ".join(["f32"] * count) + ")>")
    packed = llvm.inline_asm(result, operands, asm, constraints, has_side_effects=True)
    f32 = ir.F32Type.get()
    return tuple(Float32(llvm.extractvalue(f32, packed, [i])) for i in range(count))


def instruction(n: int, element: str = "e4m3") -> str:
    return f"wgmma.mma_async.sync.aligned.m64n{n}k{ELEMENTS[element]}.f32.{element}.{element}"


def issue(
    a: Any, b: Any, registers: Sequence[Any], accumulate: bool = False, element: str = "e4m3", mn_major: MnMajor = K_MAJOR
) -> tuple[Any, ...]:
    """Starts D[64, n] = A[64, K] B[n, K]^T, K of 128 bytes, as one group; n / 2 values per thread, not to be read before `wait`.

    a, b: descriptors of the operands' first 32 bytes of K; of an A in registers four words of E4M3 for each step of 32 of K, which are not
    to be touched before `wait` either.  registers: n / 2 values that are not needed any more, whose registers become D's: without them the
    compiler moves the start of a group up, and spills.  accumulate: D += instead; `registers` are D so far.  mn_major: of descriptors.
    """
    count, words, steps = len(registers), a if isinstance(a, Sequence) else (), [MN_K_STEP if one else K_STEP for one in mn_major]
    places = {"b": (b, steps[1])} if words else {"a": (a, steps[0]), "b": (b, steps[1])}
    major = "" if element == "e4m3" else ", " + ", ".join(str(int(one)) for one in mn_major)
    names = ", ".join(f"${i}" for i in range(count))
    lines = ["{", ".reg .pred p;", f".reg .b64 {', '.join(places)};", *(f"mov.b64 {name}, ${i};" for i, name in enumerate(places, count))]
    lines.append("wgmma.fence.sync.aligned;")
    for step in range(STEPS):
        own = ", ".join(f"${count + len(places) + 4 * step + i}" for i in range(4))
        lines += [f"add.s64 {name}, {name}, {by};" for name, (_, by) in places.items() if step]
        lines.append(f"setp.ne.b32 p, {step or int(accumulate)}, 0;")
        lines.append(f"{instruction(2 * count, element)} {{{names}}}, {f'{{{own}}}' if words else 'a'}, b, p, 1, 1{major};")
    lines += ["wgmma.commit_group.sync.aligned;", "}"]
    constraints = ",".join(["=f"] * count + ["l"] * len(places) + ["r"] * len(words) + [str(i) for i in range(count)])
    operands = [Int64(low).ir_value() for low, _ in places.values()]
    operands += [*(Uint32(word).ir_value() for word in words), *(Float32(r).ir_value() for r in registers)]
    return _floats("\n\t".join(lines), constraints, operands, count)


def wait(values: Sequence[Any], pending: int = 0, a: Sequence[Any] = ()) -> tuple[Any, ...]:
    """Until all groups of this warp but the last `pending` are complete; the accumulator that `issue` started, ready.

    a: words that a completed group read, if they came from registers: until here they keep theirs.
    """
    count = len(values)
    constraints = ",".join(["=f"] * count + [str(i) for i in range(count)] + ["r"] * len(a))
    operands = [*(Float32(v).ir_value() for v in values), *(Uint32(word).ir_value() for word in a)]
    return _floats(f"wgmma.wait_group.sync.aligned {pending};", constraints, operands, count)
