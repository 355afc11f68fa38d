"""DeepGEMM's pre-dispatch kernels (the wheel's: BF16 tokens to E4M3 with scales, and routing) on the inputs of one rank."""

from __future__ import annotations

import struct

import torch
from cuda_headers import CudaHeaders
from deep_gemm_buffer import kernel_source
from deep_gemm_run import aligned_zeros

from megamoe_dsl.arch import SM100
from megamoe_dsl.kernels.moe.pre_dispatch.config import PreDispatchConfig
from megamoe_dsl.layouts.arith import ceil_div
from megamoe_dsl.quant import input_layout
from megamoe_dsl.runtime.bf16_inputs import Bf16Inputs
from megamoe_dsl.sim import GlobalMemory, Launch, Report, Simulator

FOLDER = "impls"
NAMES = {"sm_100a": "mega_moe_pre_dispatch_kernel", "sm_90a": "sm90_mega_moe_pre_dispatch_kernel"}
FILES = {"sm_100a": f"{FOLDER}/sm100_mega_moe_pre_dispatch.cuh", "sm_90a": f"{FOLDER}/sm90_mega_moe_pre_dispatch.cuh"}
PER_THREAD = 8  # channels


def has_inputs(headers: CudaHeaders, arch: str) -> bool:
    """Whether the headers bring the kernel: a wheel's do, the public repository's do not."""
    return headers.has(FILES[arch])


def run_inputs(headers: CudaHeaders, config: PreDispatchConfig, inputs: Bf16Inputs) -> tuple[dict[str, torch.Tensor], Report]:
    """One launch, padded to the buffer's capacity: the buffers x, x_sf, topk_idx and topk_weights, uint8, and what the simulator saw.

    Raises SimError, and HeadersError when nvcc refuses.
    """
    problem, arch = config.problem, config.arch.name
    scale, channels = input_layout(problem)
    rows, groups, topk = problem.max_tokens_per_rank, problem.hidden // channels, problem.topk
    sizes = {"x": problem.hidden, "x_sf": groups * scale.itemsize, "topk_idx": 8 * topk, "topk_weights": 4 * topk}
    out = {name: aligned_zeros(rows * size) for name, size in sizes.items()}
    experts = inputs.topk_idx.to(torch.int32)
    given = {"x": inputs.x, "topk_idx": experts, "topk_weights": inputs.topk_weights}
    memory = GlobalMemory()
    for name, tensor in given.items():
        memory.add(tensor, name=f"given {name}", read_only=True)
    for name, tensor in out.items():
        memory.add(tensor, name=name)
    kind: tuple[object, ...] = ()
    more_in: tuple[int, ...] = ()
    more_scales: tuple[int, ...] = ()
    tail: tuple[int, ...] = (struct.unpack("<I", struct.pack("<f", 1.0))[0],)  # a factor of the weights
    if arch == SM100.name:
        tail = ()
        newest = headers.has(FILES[arch], "MmaKind kMmaKind")
        kind = ("MmaKind::MXFP8FP4",) if newest else (False,)
        more_in, more_scales = ((0,), (0,)) if newest else ((), ())
    source = kernel_source(FILES[arch], NAMES[arch], channels, *kind, False)
    threads = problem.hidden // PER_THREAD
    count = inputs.num_tokens
    blocks = count + ceil_div((rows - count) * topk, threads)
    pointers = (*(tensor.data_ptr() for tensor in given.values()), *more_in)
    buffers = [tensor.data_ptr() for tensor in out.values()]
    args = (*pointers, *buffers[:2], *more_scales, *buffers[2:], count, rows, problem.hidden, groups, topk, *tail)
    launch = Launch(grid=(blocks, 1, 1), block=(threads, 1, 1), args=args)
    return out, Simulator(headers.ptx(source, arch), memory).run([launch])
