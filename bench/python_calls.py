"""What python_time.py times, with the sources that are first on the path and a driver that answers at once: prints microseconds by name."""

from __future__ import annotations

import ctypes
import json
import random
import statistics
import sys
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from call_times import Call, no_collection
from megamoe_dsl import MegaMoE, Problem, gemm, grouped_gemm, moe, random_weights, scales_by_column
from megamoe_dsl.arch import SM90
from megamoe_dsl.hardware.tensor_map import TensorMap
from megamoe_dsl.kernels.moe.layouts.symmetric import symmetric_buffer
from megamoe_dsl.runtime import cuda_kernel, device_gemm, expert_plan, experts, layer, rank_kernel, top_experts
from megamoe_dsl.runtime import gemm as gemms
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from megamoe_dsl.target import Target

TOKENS, HIDDEN, INTERMEDIATE, EXPERTS, TOPK, SMS = 8, 256, 128, 8, 2, 132


def nothing(*_: Any) -> None:
    """In the place of what needs a GPU."""


def install() -> None:
    """CPU tensors pass for a GPU's."""
    torch._C._cuda_getDevice = nothing  # type: ignore[attr-defined]
    torch._C._cuda_getCurrentRawStream = lambda _: 0  # type: ignore[attr-defined]
    properties = SimpleNamespace(multi_processor_count=SMS)
    replaced = {"current_device": lambda: 0, "get_device_properties": lambda _: properties, "is_current_stream_capturing": lambda: False}
    for name, value in {"current_stream": nothing, "synchronize": nothing, **replaced}.items():
        setattr(torch.cuda, name, value)
    others = {"check_current": nothing, "check_resident": nothing, "gpu_target": lambda _: Target(SM90, SMS), "device_arch": lambda _: SM90}
    others["encode_tensor_map"] = TensorMap.encode
    for module in (cuda_kernel, device_gemm, expert_plan, experts, gemms, layer, rank_kernel, top_experts):
        for name, value in others.items():
            if hasattr(module, name):
                setattr(module, name, value)


def expert_calls(how_many: int) -> dict[str, Call]:
    """Of the layer on one GPU, and of what chooses experts.  `how_many` calls may be made of each."""
    x, logits = torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16), torch.zeros(TOKENS, EXPERTS)
    idx, weights = torch.zeros(TOKENS, TOPK, dtype=torch.int64), torch.zeros(TOKENS, TOPK)
    shapes = (EXPERTS, 2 * INTERMEDIATE, HIDDEN), (EXPERTS, HIDDEN, INTERMEDIATE)
    fp8 = [one for e, n, k in shapes for one in (torch.zeros(e, n, k).to(torch.float8_e4m3fn), torch.ones(e, n // 128, k // 128))]
    bf16 = [one for shape in shapes for one in (torch.zeros(*shape, dtype=torch.bfloat16), None)]
    elsewhere = iter(torch.zeros(how_many, *x.shape, dtype=x.dtype))
    chosen = {"topk_idx": idx, "topk_weights": weights}
    return {
        "moe": partial(moe, x, *fp8, **chosen),
        "moe, logits": partial(moe, x, *fp8, router_logits=logits, topk=TOPK),
        "moe, BF16": partial(moe, x, *bf16, **chosen),
        "moe, BF16, each time other tokens": lambda: moe(next(elsewhere), *bf16, **chosen),
        "top_experts": partial(top_experts.top_experts, logits, TOPK),
        "torch add_": partial(x.add_, 1),
    }


def gemm_calls() -> dict[str, Call]:
    """Dense and grouped."""
    a, a_sf = torch.zeros(TOKENS, HIDDEN).to(torch.float8_e4m3fn), scales_by_column(torch.ones(TOKENS, HIDDEN // 128))
    b, b_sf = torch.zeros(EXPERTS, HIDDEN, HIDDEN).to(torch.float8_e4m3fn), torch.ones(EXPERTS, HIDDEN // 128, HIDDEN // 128)
    out, ends = torch.empty(TOKENS, HIDDEN, dtype=torch.bfloat16), torch.full((EXPERTS,), TOKENS, dtype=torch.int32)
    return {
        "gemm": partial(gemm, a, a_sf, b[0], b_sf[0]),
        "gemm, out": partial(gemm, a, a_sf, b[0], b_sf[0], out),
        "grouped_gemm": partial(grouped_gemm, a, a_sf, b, b_sf, ends),
    }


def layer_calls() -> dict[str, Call]:
    """Of the fused layer; its kernel alone, and the launch in that by cuda-bindings and by ctypes."""
    problem = Problem(HIDDEN, INTERMEDIATE, EXPERTS, TOPK, num_ranks=1, max_tokens_per_rank=TOKENS, recipe="fp8xfp8")
    memory = torch.zeros(symmetric_buffer(problem, SM90).size, dtype=torch.uint8)
    symmetric = SymmetricBuffer(problem, 0, memory, torch.tensor([memory.data_ptr()]))
    fused = MegaMoE(problem, random_weights(problem, 0, 0), symmetric=symmetric)
    x, weights = torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16), torch.zeros(TOKENS, TOPK)
    idx = torch.zeros(TOKENS, TOPK, dtype=torch.int64)
    scaled = x.to(torch.float8_e4m3fn), torch.ones(TOKENS, HIDDEN // 128)
    bound: Any = fused.kernels[TOKENS]
    (kernel,), word = bound.kernels, ctypes.c_void_p
    launch = kernel._launch, kernel._function, kernel.arguments.address
    by_ctypes = partial(ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx, word(launch[0].getPtr()), word(int(launch[1])), word(launch[2]), None)
    return {
        "forward, BF16": partial(fused, x, idx, weights),
        "forward, FP8": partial(fused, scaled[0], idx, weights, x_sf=scaled[1]),
        "kernel": partial(bound, torch.empty_like(x)),
        "a launch by cuda-bindings": partial(cuda_kernel.driver.cuLaunchKernelEx, *launch, 0),
        "a launch by ctypes": by_ctypes,
    }


def processor_times(calls: dict[str, Call], count: int, repeats: int) -> dict[str, float]:
    """Microseconds of this process's processor time per call: medians of repeats, each of `count` calls of every one in an order that
    changes.  Other processes may run meanwhile."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    draw = random.Random(repeats)
    with no_collection():
        for turn in range(repeats + 1):
            for name in draw.sample(list(calls), len(calls)):
                call = calls[name]
                start = time.process_time_ns()
                for _ in range(count):
                    call()
                if turn:  # the first warms up
                    found[name].append((time.process_time_ns() - start) / count / 1e3)
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    how_often: dict[str, int] = json.loads(sys.argv[1])
    install()
    most = how_often["count"] * (how_often["repeats"] + 1)
    print(json.dumps(processor_times({**expert_calls(most), **gemm_calls(), **layer_calls()}, **how_often)))


if __name__ == "__main__":
    main()
