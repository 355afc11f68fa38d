"""The pre-dispatch kernel in the simulator: the symmetric buffer's bytes are those of `quant`."""

from functools import lru_cache, partial

import pytest
import torch

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.kernels.moe.inputs_config import PreDispatchConfig
from megamoe_dsl.kernels.moe.layouts.symmetric import symmetric_buffer
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import quantize_e2m1, quantize_e4m3, quantize_e4m3_f32, quantize_nvfp4
from megamoe_dsl.sim import GlobalMemory, Launch, Simulator

FACTORS = torch.tensor([[0.003, 5.0, 6.0, 7.0, 8.0], [9.0] * 5])
QUANTIZE = {
    "fp8xfp4": quantize_e4m3,
    "mxf4xmxf4": quantize_e2m1,
    "nvfp4xnvfp4": partial(quantize_nvfp4, factor=FACTORS[0, 0]),
    "fp8xfp8": quantize_e4m3_f32,
}
"""By recipe."""
SMALL = (512, 3, 7)
"""Channels, top-k and tokens of a rank: chunks and slots for one CTA."""


@lru_cache
def artifact(recipe: str, shape: tuple[int, int, int] = SMALL, quantized: bool = False) -> Artifact:
    hidden, topk, capacity = shape
    problem = Problem(hidden, 256, 8, topk, max_tokens_per_rank=capacity, recipe=recipe)
    return compile_kernel(PreDispatchConfig(problem, 2, "sm_90a" if recipe == "fp8xfp8" else "sm_100a", quantized))


def tokens(count: int, hidden: int, seed: int) -> torch.Tensor:
    """BF16 of many magnitudes: blocks of zeros, minus zeros, subnormals, the largest finite value, values on rounding boundaries."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, hidden, generator=generator) * torch.exp2(
        torch.randint(-20, 20, (count, hidden // 32), generator=generator)
    ).repeat_interleave(32, 1)
    x = x.bfloat16()
    if count > 2:
        x[0, :256] = 0.0
        x[0, 128:160] = -0.0
        x[1, :256] = torch.tensor(2.0**-133).bfloat16()
        x[1, 256:] = torch.finfo(torch.bfloat16).max
        x[2, :256] = torch.tensor([448.0, 17.0, 18.0, 19.0] * 64).bfloat16()
        ties = torch.tensor([6.0, -0.75, 0.75, 1.75, 3.5, 2.5, -0.25, 5.0]).bfloat16()
        x[2, 256:] = ties.repeat(hidden // 8)[: hidden - 256]
    return x


def run(kernel: Artifact, x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor, x_sf: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """One launch; the fields of the symmetric buffer afterwards."""
    config = kernel.config
    region = symmetric_buffer(config.problem, config.arch)
    sym = torch.full((region.size,), 0x5A, dtype=torch.uint8)
    memory = GlobalMemory()
    memory.add(sym, name="sym", rank=0)
    given = {"x": x, "topk_idx": idx, "topk_weights": weights} | ({} if x_sf is None else {"x_sf": x_sf})
    given |= {"factors": FACTORS} if "factors" in kernel.kernel.arguments(config).names else {}
    for name, tensor in given.items():
        if tensor.numel():
            memory.add(tensor, name=name, rank=0, read_only=True)
    pointers = {name: tensor.data_ptr() for name, tensor in given.items()}
    launch = Launch(
        grid=(config.num_sms, 1, 1),
        block=(config.num_threads, 1, 1),
        cluster=(1, 1, 1),
        dynamic_smem=kernel.dynamic_smem,
        args=kernel.kernel.arguments(config).pack(sym=sym.data_ptr(), **pointers, num_tokens=len(x)),
        rank=0,
    )
    report = Simulator(kernel.ptx, memory).run([launch])
    assert not report.findings
    return {name: region.view(sym, name) for name in ("x", "x_sf", "topk_idx", "topk_weights", "fc1_acts")}


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("recipe", QUANTIZE)
@pytest.mark.parametrize("count", [7, 5, 1, 0])
def test_bytes_equal_quant(recipe: str, count: int, quantized: bool) -> None:
    check_bytes(recipe, SMALL, count, quantized)


@pytest.mark.parametrize("recipe", QUANTIZE)
def test_more_chunks_and_slots_than_the_grid_has_warps_and_threads(recipe: str) -> None:
    """Every warp takes chunks several times, some threads take slots twice; no CTA does what is another's."""
    count, topk = 140, 8
    grid = artifact(recipe, (256, topk, count)).config
    assert count > 2 * grid.num_sms * grid.num_threads // 32 and count * topk > grid.num_sms * grid.num_threads
    check_bytes(recipe, (256, topk, count), count - 1, False)


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("recipe", QUANTIZE)
def test_hidden_that_is_no_multiple_of_256(recipe: str, quantized: bool) -> None:
    """A last chunk of 96 channels, with a scale of 96 channels or three of a word."""
    check_bytes(recipe, (608, 2, 5), 5, quantized)


def check_bytes(recipe: str, shape: tuple[int, int, int], count: int, quantized: bool) -> None:
    """One launch on `count` tokens: codes, scales and routing are those of `quant`, and nothing else is written."""
    hidden, topk, _ = shape
    x = tokens(count, hidden, seed=count)
    idx = torch.arange(count * topk).reshape(count, topk) % 9 - 1
    weights = torch.rand(count, topk)
    codes, sf = QUANTIZE[recipe](x)
    given = (codes, idx, weights, sf.contiguous()) if quantized else (x, idx, weights, None)
    fields = run(artifact(recipe, shape, quantized), *given)
    raw = {name: field.view(torch.uint8) for name, field in fields.items()}
    assert torch.equal(raw["x"][:count], codes.view(torch.uint8))
    scales = sf.contiguous().view(torch.uint8)
    filled = raw["x_sf"][:count, scales.shape[1] :]
    assert torch.equal(raw["x_sf"][:count, : scales.shape[1]], scales) and filled.shape[1] < 4
    assert (filled < 255).all(), "what fills a word up is no NaN"
    assert torch.equal(fields["topk_idx"][:count], idx)
    assert torch.equal(fields["topk_weights"][:count], weights)
    for name, row in {"x": count, "x_sf": count, "topk_idx": count, "topk_weights": count, "fc1_acts": 0}.items():
        assert (raw[name][row:] == 0x5A).all(), name


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("recipe", QUANTIZE)
def test_nothing_spills(recipe: str, quantized: bool) -> None:
    use = artifact(recipe, quantized=quantized).resources
    assert use.stack_bytes == 0 and use.registers <= 64, "several CTAs of 512 threads share an SM"
