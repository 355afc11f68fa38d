"""Arithmetic for host ints and traced integers: one compiled host function against plain Python."""

import os
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megamoe_dsl.layouts.arith import align, ceil_div, div, is_host, minimum, select, wide

DIVISORS = (1, 2, 3, 7, 16, 96, 192, 256)


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20))
def test_host_arithmetic(a, b):
    assert div(a, b) * b <= a < (div(a, b) + 1) * b
    assert (ceil_div(a, b) - 1) * b < a <= ceil_div(a, b) * b == align(a, b)
    assert select(a < b, a, b) == minimum(a, b) == min(a, b)
    assert wide(a) is a and is_host(a, b) and not is_host(a, 1.0)


@pytest.fixture(scope="module")
def evaluate():
    """Row i: results for the pair i, computed by a function compiled for the CPU."""
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
    import cutlass
    import cutlass.cute as cute
    from cutlass import Int32, Int64
    from cutlass.cute.runtime import from_dlpack

    @cute.jit
    def kernel(pairs: cute.Tensor, out: cute.Tensor, count: Int32):
        for i in range(count):
            a, b = pairs[i, 0], pairs[i, 1]
            values = [
                *results(a, b),
                select(a < b, a, wide(b) << 20),
                select(a < b, wide(a) << 20, 5),
                *(f(a, d) for d in DIVISORS for f in (div, ceil_div)),
            ]
            for j in cutlass.range_constexpr(len(values)):
                out[i, j] = Int64(values[j])

    def run(pairs):
        out = np.zeros((len(pairs), 7 + 2 * len(DIVISORS)), np.int64)
        kernel(from_dlpack(np.array(pairs, np.int32)), from_dlpack(out), len(pairs))
        return out.tolist()

    return run


def results(a, b):
    return select(a < b, 3, 4), select(a == b, a, 7), minimum(a, b), minimum(a, 1000), wide(a) * (1 << 31)


def test_traced_arithmetic_equals_host_arithmetic(evaluate):
    rng = random.Random(0)
    pairs = [(rng.randrange(1 << rng.randrange(1, 31)), rng.randrange(1 << rng.randrange(1, 31))) for _ in range(1000)]
    pairs += [(0, 0), (5, 5), ((1 << 31) - 256, 1)]
    for (a, b), row in zip(pairs, evaluate(pairs), strict=True):
        wider = [a if a < b else b << 20, a << 20 if a < b else 5]
        assert row == [*results(a, b), *wider, *(n for d in DIVISORS for n in (a // d, -(-a // d)))], (a, b)
