"""Integer, logic, bit and data-movement instructions against Python integers."""

import numpy as np
import pytest
from ptx_cases import lanes

from megamoe_dsl.sim import SimError

RNG = np.random.default_rng(1)
EDGES = np.array([0, 1, 2, 31, 32, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF], np.uint32)
U = np.concatenate([EDGES, RNG.integers(0, 1 << 32, 24, dtype=np.uint32)])
V = np.concatenate([EDGES[::-1], RNG.integers(0, 1 << 32, 24, dtype=np.uint32)])
W64 = RNG.integers(0, 1 << 64, 32, dtype=np.uint64)
X64 = RNG.integers(0, 1 << 64, 32, dtype=np.uint64)
M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def s32(x):
    return x - (1 << 32) if x >> 31 else x


def s64(x):
    return x - (1 << 64) if x >> 63 else x


def truncated(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY = {
    "add.s32": lambda a, b: a + b,
    "sub.u32": lambda a, b: a - b,
    "mul.lo.s32": lambda a, b: a * b,
    "mul.hi.u32": lambda a, b: a * b >> 32,
    "mul.hi.s32": lambda a, b: s32(a) * s32(b) >> 32,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "min.s32": lambda a, b: min(s32(a), s32(b)),
    "max.u32": lambda a, b: max(a, b),
    "max.s32": lambda a, b: max(s32(a), s32(b)),
    "min.relu.s32": lambda a, b: max(min(s32(a), s32(b)), 0),
    "max.relu.s32": lambda a, b: max(s32(a), s32(b), 0),
    "shl.b32": lambda a, b: a << b if b < 32 else 0,
    "shr.u32": lambda a, b: a >> b if b < 32 else 0,
    "shr.s32": lambda a, b: s32(a) >> min(b, 31),
    "div.u32": lambda a, b: a // b if b else M32,
    "rem.u32": lambda a, b: a % b if b else a,
    "div.s32": lambda a, b: truncated(s32(a), s32(b)) if b else -1,
    "rem.s32": lambda a, b: s32(a) - truncated(s32(a), s32(b)) * s32(b) if b else a,
}


@pytest.mark.parametrize("opcode", BINARY)
def test_binary_32(opcode):
    got = lanes(f"{opcode} %r3, %r1, %r2;", U, V, result="%r3", dtype=np.uint32)
    assert got.tolist() == [BINARY[opcode](int(a), int(b)) & M32 for a, b in zip(U, V, strict=True)]


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("add.s64", lambda a, b: a + b),
        ("mul.lo.u64", lambda a, b: a * b),
        ("mul.hi.u64", lambda a, b: a * b >> 64),
        ("mul.hi.s64", lambda a, b: s64(a) * s64(b) >> 64),
        ("min.u64", min),
        ("max.s64", lambda a, b: max(s64(a), s64(b))),
        ("div.u64", lambda a, b: a // b),
        ("div.s64", lambda a, b: truncated(s64(a), s64(b))),
        ("xor.b64", lambda a, b: a ^ b),
    ],
)
def test_binary_64(opcode, expected):
    got = lanes(f"{opcode} %rd3, %rd1, %rd2;", W64, X64, result="%rd3", dtype=np.uint64)
    assert got.tolist() == [expected(int(a), int(b)) & M64 for a, b in zip(W64, X64, strict=True)]


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("mul.wide.u32 %rd3, %r1, %r2;", lambda a, b: a * b),
        ("mul.wide.s32 %rd3, %r1, %r2;", lambda a, b: s32(a) * s32(b)),
        ("mul.wide.s32 %rd3, %r1, -3;", lambda a, b: s32(a) * -3),
        ("mul.wide.u32 %rd3, %r1, -858993459;", lambda a, b: a * 0xCCCCCCCD),
        ("mul.wide.s32 %rd3, 0xCCCCCCCD, %r1;", lambda a, b: s32(a) * s32(0xCCCCCCCD)),
        ("mul.wide.u16 %r3, 0xFFFF, -2; cvt.u64.u32 %rd3, %r3;", lambda a, b: 0xFFFF * 0xFFFE),
        ("cvt.s64.s32 %rd3, %r1;", lambda a, b: s32(a)),
        ("cvt.u64.u32 %rd3, %r1;", lambda a, b: a),
        ("mov.b64 %rd3, {%r1, %r2};", lambda a, b: a | b << 32),
        ("shl.b64 %rd4, 1, %r1; mov.b64 %rd3, %rd4;", lambda a, b: 1 << a if a < 64 else 0),
    ],
)
def test_widening(opcode, expected):
    got = lanes(opcode, U, V, result="%rd3", dtype=np.uint64)
    assert got.tolist() == [expected(int(a), int(b)) & M64 for a, b in zip(U, V, strict=True)]


def test_mad_wide_and_lo():
    got = lanes("mad.wide.u32 %rd5, %r1, %r2, %rd3;", U, V, W64, result="%rd5", dtype=np.uint64)
    assert got.tolist() == [(int(a) * int(b) + int(c)) & M64 for a, b, c in zip(U, V, W64, strict=True)]
    got = lanes("mad.lo.s32 %r5, %r1, %r2, 7;", U, V, result="%r5", dtype=np.uint32)
    assert got.tolist() == [(int(a) * int(b) + 7) & M32 for a, b in zip(U, V, strict=True)]


def bfe(v, pos, n):
    return v >> pos & ((1 << n) - 1)


def bfe_s32(v, pos, n):
    field = s32(v) >> pos & ((1 << n) - 1)
    return field - (1 << n) if n and field >> (n - 1) else field


UNARY = {
    "popc.b32": lambda a: bin(a).count("1"),
    "clz.b32": lambda a: 32 - a.bit_length(),
    "brev.b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "not.b32": lambda a: ~a,
    "neg.s32": lambda a: -a,
    "abs.s32": lambda a: abs(s32(a)),
    "bfind.u32": lambda a: a.bit_length() - 1,
    "bfind.shiftamt.u32": lambda a: 32 - a.bit_length() if a else M32,
    "bfind.s32": lambda a: (a if s32(a) >= 0 else ~s32(a)).bit_length() - 1,
}


@pytest.mark.parametrize("opcode", UNARY)
def test_unary(opcode):
    got = lanes(f"{opcode} %r3, %r1;", U, result="%r3", dtype=np.uint32)
    assert got.tolist() == [UNARY[opcode](int(a)) & M32 for a in U]


@pytest.mark.parametrize(("pos", "n"), [(0, 8), (5, 7), (24, 8), (31, 1), (3, 0)])
def test_bit_fields(pos, n):
    assert lanes(f"bfe.u32 %r3, %r1, {pos}, {n};", U, result="%r3", dtype=np.uint32).tolist() == [bfe(int(a), pos, n) for a in U]
    got = lanes(f"bfe.s32 %r3, %r1, {pos}, {n};", U, result="%r3", dtype=np.uint32)
    assert got.tolist() == [bfe_s32(int(a), pos, n) & M32 for a in U]
    mask = ((1 << n) - 1) << pos
    got = lanes(f"bfi.b32 %r3, %r1, %r2, {pos}, {n};", U, V, result="%r3", dtype=np.uint32)
    assert got.tolist() == [(int(b) & ~mask | int(a) << pos & mask) & M32 for a, b in zip(U, V, strict=True)]


@pytest.mark.parametrize("table", [0x00, 0xFF, 0xC0, 0xFC, 0x96, 0xE8, 0xCA, 0x1B, 0xF8, 0xEA])
def test_lop3(table):
    got = lanes(f"lop3.b32 %r4, %r1, %r2, %r3, {table};", U, V, U[::-1], result="%r4", dtype=np.uint32)
    for a, b, c, g in zip(U, V, U[::-1], got, strict=True):
        index = [(int(a) >> k & 1) << 2 | (int(b) >> k & 1) << 1 | int(c) >> k & 1 for k in range(32)]
        assert int(g) == sum((table >> i & 1) << k for k, i in enumerate(index))


def test_prmt_selects_bytes_and_replicates_signs():
    a, b = np.uint32(0x83828180), np.uint32(0x07060504)
    got = lanes(
        "prmt.b32 %r3, %r1, %r2, 0x7531; prmt.b32 %r4, %r1, %r2, 0xC8F0; xor.b32 %r5, %r3, %r4;", a, b, result="%r3", dtype=np.uint32
    )
    assert got[0] == 0x07058381
    assert lanes("prmt.b32 %r3, %r1, %r2, 0xC8F0;", a, b, result="%r3", dtype=np.uint32)[0] == 0x00FF0080


@pytest.mark.parametrize(("mode", "amount"), [("wrap", 5), ("clamp", 40), ("wrap", 37)])
def test_funnel_shifts(mode, amount):
    n = amount & 31 if mode == "wrap" else min(amount, 32)
    both = [int(a) | int(b) << 32 for a, b in zip(U, V, strict=True)]
    left = lanes(f"shf.l.{mode}.b32 %r3, %r1, %r2, {amount};", U, V, result="%r3", dtype=np.uint32)
    right = lanes(f"shf.r.{mode}.b32 %r3, %r1, %r2, {amount};", U, V, result="%r3", dtype=np.uint32)
    assert left.tolist() == [(x << n) >> 32 & M32 for x in both]
    assert right.tolist() == [x >> n & M32 for x in both]


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_bit_masks(mode):
    starts, widths = (np.array([0, 5, 31, 32, 33, 40, 255, 3] * 4, np.uint32), np.repeat([1, 8, 32, 37], 8).astype(np.uint32))
    got = lanes(f"bmsk.{mode}.b32 %r3, %r1, %r2;", starts, widths, result="%r3", dtype=np.uint32)
    limited = (lambda n: min(int(n), 32)) if mode == "clamp" else (lambda n: int(n) & 31)
    assert got.tolist() == [((1 << limited(n)) - 1 << limited(at)) & M32 for at, n in zip(starts, widths, strict=True)]


def test_fns_finds_the_nth_set_bit():
    masks = np.full(32, 0b1011_0100, np.uint32)
    offsets = np.zeros(32, np.uint32)
    offsets[:6] = [0, 1, 2, 3, 5, np.uint32(0xFFFFFFFF)]
    got = lanes("fns.b32 %r3, %r1, 2, %r2;", masks, offsets, result="%r3", dtype=np.uint32)
    assert got[:6].tolist() == [2, 2, 4, 5, M32, 2]
    beyond = lanes("fns.b32 %r3, %r1, 0xFFFFFFFF, %r2;", masks, np.uint32(0xFFFFFFFF), result="%r3", dtype=np.uint32)
    assert beyond[0] == 7  # the highest one below a base that is no bit


def test_setp_selp_and_predicate_logic():
    text = """
    setp.lt.s32 %p1|%p2, %r1, %r2;
    setp.lo.u32 %p3, %r1, %r2;
    xor.pred %p4, %p1, %p3;
    setp.eq.and.s32 %p5, %r1, %r1, !%p2;
    selp.b32 %r3, 1, 0, %p1; selp.b32 %r4, 2, 0, %p4; selp.b32 %r5, 4, 0, %p5;
    or.b32 %r3, %r3, %r4; or.b32 %r3, %r3, %r5;
    """
    got = lanes(text, U, V, result="%r3", dtype=np.uint32)
    want = []
    for a, b in zip(U.tolist(), V.tolist(), strict=True):
        less = s32(a) < s32(b)
        want.append(less | (less != (a < b)) << 1 | less << 2)
    assert got.tolist() == want


def test_mov_unpacks_before_it_overwrites():
    got = lanes("mov.b64 %rd3, {%r1, %r2}; mov.b64 {%r2, %r1}, %rd3; sub.u32 %r3, %r1, %r2;", U, V, result="%r3", dtype=np.uint32)
    assert got.tolist() == [(int(b) - int(a)) & M32 for a, b in zip(U, V, strict=True)]
    got = lanes("mov.b32 {%h1, %h2}, %r1; mov.b32 %r3, {%h2, %h1};", U, result="%r3", dtype=np.uint32)
    assert got.tolist() == [(int(a) >> 16 | int(a) << 16) & M32 for a in U]


@pytest.mark.parametrize("kinds", [("u32", "u32"), ("s32", "s32"), ("s32", "u32"), ("u32", "s32")])
def test_dot_product_of_bytes(kinds):
    rng = np.random.default_rng(4)
    x, y, c = (rng.integers(0, 1 << 32, 32).astype(np.uint32) for _ in range(3))
    types = [np.int8 if kind == "s32" else np.uint8 for kind in kinds]
    left, right = (v.view(t).reshape(32, 4).astype(np.int64) for v, t in zip((x, y), types, strict=True))
    got = lanes(f"dp4a.{kinds[0]}.{kinds[1]} %r9, %r1, %r2, %r3;", x, y, c, result="%r9", dtype=np.uint32)
    np.testing.assert_array_equal(got, ((left * right).sum(axis=1) + c).astype(np.uint32))


@pytest.mark.parametrize("opcode", ["add.s16x2", "min.s16x2", "add.sat.s32", "sub.cc.u32"])
def test_integer_arithmetic_that_is_not_modeled(opcode):
    with pytest.raises(SimError, match=rf"{opcode}.*(no operand type|not supported)"):
        lanes(f"{opcode} %r4, %r1, %r2;", U, V, result="%r4", dtype=np.uint32)
