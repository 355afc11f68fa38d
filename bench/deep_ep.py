"""DeepEP's kernels for one NVLink domain, on two GPUs: what it takes to send so many tokens to the other GPU, and to send BF16 rows back.

    git clone --branch v1.2.1 https://github.com/deepseek-ai/DeepEP
    nvcc -shared -Xcompiler -fPIC -O3 -std=c++17 --expt-relaxed-constexpr -DDISABLE_NVSHMEM -gencode arch=compute_90a,code=sm_90a \\
        -o libdeep_ep.so DeepEP/csrc/kernels/intranode.cu DeepEP/csrc/kernels/layout.cu
    python bench/deep_ep.py libdeep_ep.so --preset flash --rows 4089,16336

v1.2.1 is the last version that is built without NVSHMEM and NCCL's device API.  Its kernels take addresses, so they are called here on
torch's symmetric memory, and its Python package is not needed.  `rows` is what `bench/ep_moe.py` says that a rank fetches from others.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cuda_library import STREAM, CudaLibrary
from megamoe_dsl.bench.timing import synchronize, time_back_to_back
from megamoe_dsl.layouts.region import U8, Field, Region
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from peer_run import RANKS, run_peer

LOCAL_EXPERTS, TOPK, SCALE_CHANNELS = 32, 1, 128
SMS = (20, 64, 132)  # DeepEP's default first
DISPATCH_CHUNKS, COMBINE_CHUNKS = (24, 256), (10, 256)  # tokens sent at a time, and received at most: its choice for two ranks
SIGNALS = 128  # bytes for barriers, behind the buffer
BF16 = 14  # CUDA_R_16BF
LAUNCHES = 8
SYMBOLS = {
    "notify_dispatch": "_ZN7deep_ep9intranode15notify_dispatchEPKiPiiS2_S3_iiPKbS3_S3_iiPPvPS3_iP11CUstream_sti",
    "dispatch": "_ZN7deep_ep9intranode8dispatchEPvPfPiPlS2_S3_S3_PKvPKfPKlS8_PKbPKiiiiiiiiiPS1_iiP11CUstream_stiii",
    "cached_notify_combine": "_ZN7deep_ep9intranode21cached_notify_combineEPPvPiiiiPS3_iiP11CUstream_st",
    "combine": "_ZN7deep_ep9intranode7combineE14cudaDataType_tPvPfPKvPKfS5_S5_PKiS9_S9_PiiiiiPS2_iiP11CUstream_stiii",
}


@dataclass(frozen=True)
class Job:
    """`rows` tokens of each rank, of so many channels, through channels of `sms` SMs."""

    preset: str
    hidden: int
    rows: int
    sms: int

    @property
    def name(self) -> str:
        """flash 4089 rows 20 SMs"""
        return f"{self.preset} {self.rows} rows {self.sms} SMs"

    @property
    def channels(self) -> int:
        """Of two SMs each."""
        return self.sms // 2

    @property
    def buffer_bytes(self) -> int:
        """Of prefixes and queues, and of slots of BF16 rows with index, weight and scales."""
        slot = 2 * self.hidden + 4 + TOPK * 12 + 4 * (self.hidden // SCALE_CHANNELS)
        return (4 * RANKS * (RANKS + LOCAL_EXPERTS + 8 * self.channels) + self.channels * RANKS * 256 * slot + 65535) // 65536 * 65536


def measure(job: Job, run: CudaLibrary) -> dict[str, Any]:
    """Times of dispatch and of combine, all ranks together, after a check of what they have moved."""
    rank, hidden, rows, channels = dist.get_rank(), job.hidden, job.rows, job.channels
    problem = Problem(hidden, hidden, RANKS * LOCAL_EXPERTS, TOPK, RANKS, rows, recipe="fp8xfp8")
    symmetric = SymmetricBuffer.allocate(problem, region=Region.stack("deep_ep", Field("bytes", (job.buffer_bytes + SIGNALS,), U8, 128)))
    buffers, signals = symmetric.peers.contiguous(), symmetric.peers + job.buffer_bytes

    def new(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device="cuda")

    def sent(source: int) -> torch.Tensor:
        generator = torch.Generator("cuda").manual_seed(source)
        return torch.randint(0, 255, (rows, hidden), generator=generator, device="cuda", dtype=torch.uint8)

    other, x, scales = 1 - rank, sent(rank), torch.rand(rows, hidden // SCALE_CHANNELS, device="cuda")
    topk_idx = torch.full((rows, TOPK), other * LOCAL_EXPERTS, dtype=torch.int64, device="cuda")
    topk_weights, to_rank = torch.ones(rows, TOPK, device="cuda"), new(rows, RANKS, dtype=torch.bool)
    to_rank[:, other] = True
    per_rank, per_expert = new(RANKS), new(RANKS * LOCAL_EXPERTS)
    per_rank[other] = per_expert[other * LOCAL_EXPERTS] = rows
    counter, expert_counter, rank_prefix, prefix, send_head = new(1), new(1024), new(RANKS, RANKS), new(RANKS, channels), new(rows, RANKS)
    received, received_scales, received_weights = (torch.empty_like(one) for one in (x, scales, topk_weights))
    source, received_idx, offsets = new(rows), torch.empty_like(topk_idx), new(RANKS, channels)
    results, y = (torch.empty(rows, hidden, dtype=torch.bfloat16, device="cuda") for _ in range(2))

    def dispatch() -> None:
        where = (buffers, signals, rank, STREAM, channels)
        counts = (per_rank, counter, RANKS, per_expert, expert_counter, RANKS * LOCAL_EXPERTS, rows, to_rank)
        run("notify_dispatch", *counts, prefix, rank_prefix, channels * RANKS * 4, 1, *where)
        made = (received, received_scales, source, received_idx, received_weights, offsets, send_head)
        given = (x, scales, topk_idx, topk_weights, to_rank, prefix)
        sizes = (rows, 0, hidden // 16, TOPK, RANKS * LOCAL_EXPERTS, scales.shape[1], scales.stride(0), scales.stride(1))
        run("dispatch", *made, *given, *sizes, buffers, rank, RANKS, STREAM, job.sms, *DISPATCH_CHUNKS)

    def combine() -> None:
        run("cached_notify_combine", buffers, send_head, channels, rows, channels * RANKS * 2, signals, rank, RANKS, STREAM)
        operands = (y, None, results, None, None, None, source, rank_prefix, offsets, send_head)
        run("combine", BF16, *operands, rows, rows, hidden, 0, buffers, rank, RANKS, STREAM, job.sms, *COMBINE_CHUNKS)

    synchronize()
    dispatch()
    synchronize()
    assert torch.equal(received, sent(other)[source.long()]), "dispatch: other rows"
    results.copy_(numbers(received))
    combine()
    synchronize()
    assert torch.equal(y, numbers(x)), "combine: other rows"
    times = time_back_to_back({"dispatch": dispatch}, LAUNCHES) | time_back_to_back({"combine": combine}, LAUNCHES)
    symmetric.close()
    moved = {"dispatch": rows * (hidden + 4 * scales.shape[1]), "combine": rows * 2 * hidden}
    rates = {name: moved[name] / one.median / 1e3 for name, one in times.items()}
    return {"us": {name: one.median for name, one in times.items()}, "gb_per_s": rates}


def numbers(rows: torch.Tensor) -> torch.Tensor:
    """E4M3 codes as BF16, without NaN."""
    return rows.view(torch.float8_e4m3fn).float().nan_to_num(0).bfloat16()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path, help="of DeepEP's kernels")
    parser.add_argument("--preset", choices=PRESETS, default="flash", help="whose channels a token has")
    parser.add_argument("--rows", default="4089,16336,32608", help="that each rank sends to the other")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    given = parser.parse_args()
    hidden = PRESETS[given.preset].hidden
    jobs = [Job(given.preset, hidden, int(rows), sms) for rows in given.rows.split(",") for sms in SMS]
    run_peer("deep_ep", given.library, SYMBOLS, measure, jobs, given.out, lambda record, kernel: f", {record['gb_per_s'][kernel]:.0f} GB/s")


if __name__ == "__main__":
    main()
