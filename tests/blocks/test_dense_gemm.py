"""Blocks without MegaMoE: a dense GEMM of main loops, loaders, stages and the dense order is exact in the simulator, without a race."""

from __future__ import annotations

import os

import pytest
import torch

from megamoe_dsl.quant import tile_sm90
from megamoe_dsl.sim import GlobalMemory, Launch, Simulator
from ptx_of import ptx_of


def multiply(m: int, n: int, k: int, block_m: int, tiled: bool, num_sms: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(D, what it should be), of small integers and powers of two: every sum is exact."""
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")
    import cuda.bindings.driver as driver
    from cutlass import Int32, Int64
    from dense_gemm import FIRST_MATH_WARP, MATH_WARPS, GemmArguments, GemmConfig, gemm

    config = GemmConfig(n, k, block_m, tiled, num_sms)
    zero = Int64(0)
    ptx = ptx_of(gemm, config, GemmArguments(zero, zero, zero, Int32(0)), driver.CUstream(0), arch="sm_90a")
    generator = torch.Generator().manual_seed(m)
    a, b = (torch.randint(-3, 4, (rows, k), generator=generator).float() for rows in (m, n))
    sfa, sfb = (torch.exp2(torch.randint(-2, 3, (rows, k // 128), generator=generator)) for rows in (m, n // 128))
    padded = -(-m // 4) * 4
    sfa_t = torch.zeros(k // 128, padded)
    sfa_t[:, :m] = sfa.T
    tensors = {"a": torch.zeros(padded, k), "b": b.to(torch.float8_e4m3fn), "sfa": sfa_t, "sfb": sfb}
    if tiled:
        tensors["b"] = tile_sm90(tensors["b"])
    tensors["a"][:m] = a
    tensors["a"] = tensors["a"].to(torch.float8_e4m3fn)
    maps = config.tensor_maps(*(tensors[name].data_ptr() for name in ("a", "sfa", "b")), padded)
    table = b"".join(one.encode() for one in maps)
    store = torch.zeros(len(table) + 128, dtype=torch.uint8)
    start = -store.data_ptr() % 128
    tensors["maps"] = store[start : start + len(table)]
    tensors["maps"].copy_(torch.frombuffer(bytearray(table), dtype=torch.uint8))
    d = torch.empty(m, n)
    memory = GlobalMemory()
    for name, tensor in tensors.items():
        memory.add(tensor, name=name, rank=0, read_only=True)
    memory.add(d, name="d", rank=0, initialised=False)
    arguments = (tensors["maps"].data_ptr(), tensors["sfb"].data_ptr(), d.data_ptr(), m)
    block = (32 * (FIRST_MATH_WARP + MATH_WARPS), 1, 1)
    launch = Launch((num_sms, 1, 1), block, (1, 1, 1), dynamic_smem=config.region.size, args=arguments, rank=0)
    report = Simulator(ptx, memory).run([launch])
    assert not report.findings
    dequantised = [x * s.repeat_interleave(128, 1) for x, s in ((a, sfa), (b, sfb.repeat_interleave(128, 0)))]
    return d, dequantised[0] @ dequantised[1].T


@pytest.mark.parametrize(
    ("m", "block_m", "tiled", "num_sms"),
    [(21, 8, True, 2), (40, 32, False, 1), (200, 128, True, 2), (130, 128, False, 1)],
    ids=["columns", "wide-columns", "rows", "half-tile"],
)
def test_result_is_exact(m: int, block_m: int, tiled: bool, num_sms: int) -> None:
    """Several tiles for each CTA, a last one that is not full, more K blocks than stages, and scales that differ everywhere."""
    d, expected = multiply(m, 512, 384, block_m, tiled, num_sms)
    assert torch.equal(d, expected)
