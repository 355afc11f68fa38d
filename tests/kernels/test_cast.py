"""Arithmetic in registers, value by value: a kernel that applies one function of `device.cast` to a list of floats, in the simulator."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from megamoe_dsl.quant import E4M3_MAX
from megamoe_dsl.reference import requantize
from megamoe_dsl.sim import GlobalMemory, Launch, Simulator
from ptx_of import ptx_of

BLOCK = 128
LIMITS = (4.0, 25.0)


@pytest.fixture(scope="module")
def apply() -> Callable[[str, torch.Tensor], torch.Tensor]:
    """(name, float32 [n]) -> what the function of that name makes of each: 32 bits, as int32."""
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
    import cutlass
    import cutlass.cute as cute
    from cutlass import Int64, Uint32

    from megamoe_dsl.device import cast
    from megamoe_dsl.device.cast import soft_limit
    from megamoe_dsl.device.memory import load_f32, store_u32
    from megamoe_dsl.device.ptx import emit_to

    def bits(value: Any) -> Any:
        return emit_to(Uint32, "mov.b32 {}, {};", value)

    functions = {
        "exact silu": lambda x: bits(cast.times_sigmoid(x, x, 1.0, False)),
        "fast silu": lambda x: bits(cast.times_sigmoid(x, x, 1.0, True)),
        **{f"limit {limit}": partial(lambda limit, x: bits(soft_limit(x, limit)), limit) for limit in LIMITS},
        "scale exponent": cast.scale_exponent,
    }

    @cute.kernel
    def kernel(name: cutlass.Constexpr[str], x: Int64, out: Int64):
        at = Int64(cute.arch.block_idx()[0] * BLOCK + cute.arch.thread_idx()[0]) * 4
        store_u32(out + at, functions[name](load_f32(x + at)))

    @cute.jit
    def launch(name: cutlass.Constexpr[str], x: Int64, out: Int64):
        kernel(name, x, out).launch(grid=(1, 1, 1), block=(BLOCK, 1, 1))

    def run(name: str, x: torch.Tensor) -> torch.Tensor:
        ptx = ptx_of(launch, name, Int64(0), Int64(0))
        padded = -(-len(x) // BLOCK) * BLOCK
        given, out = torch.zeros(padded), torch.empty(padded, dtype=torch.int32)
        given[: len(x)] = x
        memory = GlobalMemory()
        memory.add(given, name="x", read_only=True)
        memory.add(out, name="out", initialized=False)
        grid, block = (padded // BLOCK, 1, 1), (BLOCK, 1, 1)
        Simulator(ptx, memory).run([Launch(grid, block, (1, 1, 1), 0, (given.data_ptr(), out.data_ptr()))])
        return out[: len(x)]

    return run


FAR = [88.5, 89.0, 89.5, 100.0, 104.0, 1e3, 1e20, 2.5e38, 3.38e38]
GATES = torch.tensor([0.0, *FAR, *(-gate for gate in FAR)]).bfloat16()


def ulps(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Distance in FP32 numbers, of values of one sign."""
    return (got.view(torch.int32).long() - want.view(torch.int32).long()).abs()


def test_exact_silu_carries_the_rounding_error_of_its_exponent(apply: Any) -> None:
    """What is left grows with the gate as log2 e in FP32 has it, an ulp for every four; without the error it would be three times that."""
    gates = torch.cat([torch.linspace(-87.0, -0.01, 300), torch.linspace(0.01, 87.0, 84)]).bfloat16().float()
    want = (gates.double() / (1 + (-gates.double()).exp())).float()
    assert bool((ulps(apply("exact silu", gates).view(torch.float32), want) <= 2 + gates.abs() / 4).all())


@pytest.mark.parametrize("name", ["exact silu", "fast silu"])
def test_silu_of_gates_far_from_zero(apply: Any, name: str) -> None:
    """exp(-gate) is infinite or zero in FP32, and neither makes NaN."""
    got, gates = apply(name, GATES.float()).view(torch.float32), GATES.float()
    far = gates.abs() > 88.8
    assert torch.equal(got[far], gates[far].clamp(min=0.0))
    assert torch.equal(got.isfinite(), torch.ones_like(far))


@pytest.mark.parametrize("limit", LIMITS)
def test_soft_limit_is_near_tanh(apply: Any, limit: float) -> None:
    """Of both signs, on both sides of where the polynomial ends, down to where x is its own limit; infinite powers give the limit."""
    x = torch.cat([torch.linspace(0.01, 3.0, 300) * limit, torch.tensor([1e-30, 1e-6, 1e-3, 0.5499, 0.55, 0.5501, 1e3, 3e38])])
    x = torch.cat([x, -x])
    want = (limit * (x.double() / limit).tanh()).float()
    got = apply(f"limit {limit}", x).view(torch.float32)
    assert bool((ulps(got, want) <= 5).all())
    assert bool((got[-1] == -limit) & (got[len(x) // 2 - 1] == limit))


def test_scale_exponent_is_the_smallest_that_holds_the_maximum(apply: Any) -> None:
    """448 * 2^n is the largest value of scale 2^n: one exponent more would lose a bit of every value beside it."""
    largest = E4M3_MAX * torch.exp2(torch.arange(-100.0, 100.0))
    above = largest * (1 + 2.0**-20)
    amax = torch.cat([largest, above])
    _, want = requantize(amax[:, None].expand(-1, 32).contiguous(), "fp8xfp4")
    assert torch.equal(apply("scale exponent", amax), want[:, 0].int())
    assert torch.equal(want[:, 0].int(), torch.cat([torch.arange(27, 227), torch.arange(28, 228)]).int())
