"""One GPU, one rank: every pickled artifact of a folder checked against the reference on sampled tokens, then timed.

    python bench/one_gpu.py FOLDER [PATTERN]

A rank with 32 experts of the Flash shape has the work of one rank of eight with 256, without NVLink.
"""

from __future__ import annotations

import pickle
import statistics
import sys
import time
from pathlib import Path

import torch

from megamoe_dsl.quant import ExpertWeights, quantize_e4m3_f32
from megamoe_dsl.runtime.buffers import Inputs, RankBuffers
from megamoe_dsl.runtime.cuda_kernel import CudaKernel, encode_tensor_map

WATCHDOG_NS = 3_000_000_000


def quantize_weight(rows: int, cols: int, experts: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Random E4M3 weights with 128 x 128 FP32 scales."""
    out = torch.empty(experts, rows, cols, dtype=torch.float8_e4m3fn, device="cuda")
    sf = torch.empty(experts, rows // 128, cols // 128, device="cuda")
    for e in range(experts):
        w = torch.randn(rows, cols, device="cuda", generator=generator) * 0.05
        s = w.view(rows // 128, 128, cols // 128, 128).abs().amax(dim=(1, 3)) / 448
        sf[e] = s
        out[e] = (w.view(rows // 128, 128, cols // 128, 128) / s[:, None, :, None]).view(rows, cols).to(torch.float8_e4m3fn)
    return out, sf


def dequantize(w: torch.Tensor, sf: torch.Tensor) -> torch.Tensor:
    return w.float() * sf.repeat_interleave(128, 0).repeat_interleave(128, 1)


def expected(problem, x, sf, idx, weights, w: ExpertWeights, tokens: list[int]) -> torch.Tensor:
    """Plain FP32 layer for a few tokens."""
    out = torch.zeros(len(tokens), problem.hidden, device="cuda")
    clamp = problem.activation_clamp
    for i, t in enumerate(tokens):
        row = x[t].float() * sf[t].repeat_interleave(128)
        for k in range(problem.topk):
            e = int(idx[t, k])
            if e < 0:
                continue
            h = dequantize(w.l1[e], w.l1_sf[e]) @ row
            gate, up = h.bfloat16().float().chunk(2)
            gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
            a = torch.nn.functional.silu(gate) * up * weights[t, k]
            q, s = quantize_e4m3_f32(a[None])
            out[i] += (dequantize(w.l2[e], w.l2_sf[e]) @ (q.float() * s.repeat_interleave(128, 1))[0]).bfloat16().float()
    return out


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    folder, pattern = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "*"
    g = torch.Generator("cuda").manual_seed(0)
    cache: dict[tuple, ExpertWeights] = {}
    for path in sorted(folder.glob(pattern + ".pkl")):
        artifact = pickle.loads(path.read_bytes())
        problem = artifact.config.problem
        key = (problem.hidden, problem.intermediate, problem.experts_per_rank)
        if key not in cache:
            cache.clear()
            l1 = quantize_weight(2 * problem.intermediate, problem.hidden, problem.experts_per_rank, g)
            cache[key] = ExpertWeights(*l1, *quantize_weight(problem.hidden, problem.intermediate, problem.experts_per_rank, g))
        w = cache[key]
        buffers = RankBuffers(artifact.config, w, encode=encode_tensor_map)
        kernel = CudaKernel(artifact)
        tokens = problem.max_tokens_per_rank
        g.manual_seed(tokens)
        x, sf = quantize_e4m3_f32(torch.randn(tokens, problem.hidden, device="cuda", generator=g))
        top = torch.topk(torch.randn(tokens, problem.num_experts, device="cuda", generator=g), problem.topk, sorted=False)
        weights = torch.rand(tokens, problem.topk, device="cuda", generator=g)
        buffers.load(Inputs(x, sf, top.indices, weights))
        y = torch.empty(tokens, problem.hidden, dtype=torch.bfloat16, device="cuda")
        peers = torch.tensor([buffers.sym.data_ptr()], dtype=torch.int64, device="cuda")
        arguments = buffers.arguments(peers.data_ptr(), y.data_ptr(), tokens, 0, WATCHDOG_NS)
        try:
            kernel(arguments)
            torch.cuda.synchronize()
        except Exception as error:
            print(path.name, "FAILED", error, buffers.watchdog_message(), flush=True)
            sys.exit(1)
        sample = sorted({0, tokens // 3, tokens - 1})
        want = expected(problem, x, sf, top.indices, weights, w, sample)
        got = y[sample].float()
        error = ((got - want).norm() / want.norm()).item()
        first = y.clone()
        times = []
        count = 20 if tokens <= 2048 else 5
        for _ in range(7):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(count):
                kernel(arguments)
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / count)
        us = statistics.median(times)
        tflops = tokens * problem.topk * 6 * problem.hidden * problem.intermediate / us / 1e6
        weight_bytes = 3 * problem.hidden * problem.intermediate * problem.experts_per_rank
        print(
            f"{path.name:40s} us {us:8.1f} [{min(times):.1f} {max(times):.1f}] TFLOPS {tflops:7.1f} weights TB/s {weight_bytes / us / 1e6:.2f} "
            f"rel err {error:.2e} repeat equal {torch.equal(first, y)}",
            flush=True,
        )
        del buffers, y
        time.sleep(0.1)


if __name__ == "__main__":
    main()
