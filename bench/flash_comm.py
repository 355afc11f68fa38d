"""The kernels of Triton-distributed's repository that a Hopper GPU can run without its compiler, on two GPUs: rows to the rows of their
experts, and their results back.

    git clone https://github.com/ByteDance-Seed/Triton-distributed && cd Triton-distributed/FlashComm     # tried at 1512a811
    nvcc -shared -Xcompiler -fPIC -O3 -std=c++17 --expt-relaxed-constexpr -gencode arch=compute_90a,code=sm_90a -Iinclude \\
        -o libflash_comm.so csrc/ep/kernels/intranode_cuda.cu
    python bench/flash_comm.py libflash_comm.so --preset flash --tokens 4096

(It has kernels for 14 numbers of channels; without those but 2048, 3584, 4096 and 7168 in `SUPPORTED_HIDDEN_SIZES` it compiles in minutes.)
Tokens, experts and traffic are those of `bench/ep_moe.py`: a token is sent once for as many neighboring experts as one of eight ranks has.
Its tokens are BF16, so rows of E4M3 go as half as many of these, without their scales; results are rows of BF16, as ours.  A rank sums its
rows of a token before the token's rank fetches that sum, and then that rank sums as many as the token has been sent to.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cuda_library import STREAM, CudaLibrary
from megamoe_dsl.bench.point import SEED, Point, points_of
from megamoe_dsl.bench.timing import synchronize, time_graphs
from megamoe_dsl.cases import random_inputs
from megamoe_dsl.layouts.region import BF16, I32, Field, Region
from megamoe_dsl.options.points import RunOptions
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.ep.routing import experts_of
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from peer_run import RANKS, run_peer

SMS = (16, 64, 132)  # FlashComm's default first
LOCAL_CTAS = 8 * 132  # of what moves rows within a rank: its default
ROW_BLOCK = 128  # an expert's rows begin at a multiple of it, as ours
DTYPE = {"float32": 0, "bf16": 2, "int32": 4}
ALIGNMENT = 128
PREFIX = "_ZN10flash_comm2ep9intranode"
SYMBOLS = {
    "offsets": f"{PREFIX}52compute_stable_local_token_within_expert_offset_cudaEPiiiiS2_S2_S2_iP11CUstream_st",
    "layout": f"{PREFIX}28compute_dispatch_layout_cudaEPiS2_S2_PS2_S3_S2_S2_S2_S2_S2_S2_S2_S2_PPliiiiiiiP11CUstream_st",
    "dispatch": f"{PREFIX}23dispatch_intranode_cudaEPvS2_S2_S2_S2_S2_PS2_S3_iiiiiiNS_14FlashCommDTypeES4_S4_iP11CUstream_st",
    "copy": f"{PREFIX}25dispatch_postprocess_cudaEPvS2_S2_PiS2_S2_iiiiiiNS_14FlashCommDTypeES4_S4_P11CUstream_st",
    "sum": f"{PREFIX}31combine_preprocess_inplace_cudaEPvS2_PiS2_S2_iiiiiiNS_14FlashCommDTypeES4_S4_P11CUstream_st",
    "combine": f"{PREFIX}22combine_intranode_cudaEPvS2_S2_S2_S2_S2_S2_iiiiiiiNS_14FlashCommDTypeES3_S3_P11CUstream_st",
    "barrier": f"{PREFIX}26barrier_all_on_stream_cudaEPPviiNS_14FlashCommDTypeEP11CUstream_st",
}
FORMATS = (DTYPE["bf16"], DTYPE["float32"], DTYPE["int32"])


@dataclass(frozen=True)
class Job:
    """A point, with so many SMs for what crosses."""

    point: Point
    sms: int

    @property
    def name(self) -> str:
        """flash El32 EP2 R0.875 M=4096 16 SMs"""
        return f"{self.point.name} {self.sms} SMs"


def sent_tokens(point: Point, topk_idx: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is sent once: the token of each, int64 [S], and its experts of those for which it is sent, int32 [S, topk], the number of
    experts where a slot has none."""
    problem, expert = point.problem, experts_of(point.problem, topk_idx)
    sets = (expert // problem.experts_per_rank).masked_fill(expert == problem.num_experts, -1)
    pairs = torch.stack([torch.arange(len(sets), device=sets.device)[:, None].expand_as(sets), sets], dim=2)[sets >= 0].unique(dim=0)
    token, of_set = pairs.unbind(1)
    return token, torch.where(sets[token] == of_set[:, None], expert[token], problem.num_experts).int()


def sent_by(point: Point, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a rank sends: rows of E4M3 as BF16 [S, hidden / 2], and their experts."""
    inputs = random_inputs(point.problem, rank, point.tokens, SEED, "cuda", remote=point.remote)
    token, experts = sent_tokens(point, inputs.topk_idx)
    return inputs.x[token].view(torch.bfloat16), experts


class Rank:
    """Its tokens and tables, and buffers that the other rank writes to."""

    def __init__(self, job: Job, run: CudaLibrary) -> None:
        self.job, self.run, self.rank = job, run, dist.get_rank()
        self.x, self.experts = sent_by(job.point, self.rank)
        counts = torch.bincount(self.experts.flatten(), minlength=self.problem.num_experts + 1)
        dist.all_reduce(counts)
        most = int(counts[:-1].view(RANKS, -1).sum(1).max()) + ROW_BLOCK * self.problem.experts_per_rank
        self.layout = self.region(most)
        self.symmetric = SymmetricBuffer.allocate(self.problem, region=self.layout)
        self.sent, self.offsets = len(self.experts), torch.empty_like(self.experts)
        self.counts = self.new(self.problem.num_experts + 1)
        self.indices, self.mask = torch.empty_like(self.experts), torch.empty_like(self.experts)
        self.bases, self.received, self.aligned = self.new(RANKS * self.problem.num_experts), self.new(RANKS), self.new(RANKS)
        self.sources = self.new(most, self.problem.topk)
        self.y = torch.empty(self.sent, self.problem.hidden, dtype=torch.bfloat16, device="cuda")
        self.view("sources").fill_(-1)

    @property
    def problem(self) -> Problem:
        """The layer."""
        return self.job.point.problem

    def region(self, rows: int) -> Region:
        """Of so many rows of experts."""
        p = self.problem
        words = {"barriers": (RANKS,), "splits": (RANKS, p.num_experts + 1), "sources": (rows, p.topk)}
        values = {"rows": (rows, p.hidden // 2), "results": (rows, p.hidden)}
        fields = [Field(name, shape, I32, ALIGNMENT) for name, shape in words.items()]
        return Region.stack("flash_comm", *fields, *(Field(name, shape, BF16, ALIGNMENT) for name, shape in values.items()))

    def new(self, *shape: int) -> torch.Tensor:
        """Words."""
        return torch.zeros(shape, dtype=torch.int32, device="cuda")

    def view(self, name: str) -> torch.Tensor:
        """A field of this rank."""
        return self.layout.view(self.symmetric.sym, name)

    @cached_property
    def peers(self) -> dict[str, torch.Tensor]:
        """Addresses of the fields on all ranks."""
        return {one.field.name: (self.symmetric.peers + one.offset).contiguous() for one in self.layout}

    def barrier(self) -> None:
        """Of all ranks."""
        self.run("barrier", self.peers["barriers"], self.rank, RANKS, DTYPE["int32"], STREAM)

    def tables(self) -> None:
        """Where every row goes."""
        p, sms = self.problem, self.job.sms
        tiles = self.new(-(-self.experts.numel() // 1024), p.num_experts + 1)
        sizes = (self.sent, p.topk, p.num_experts)
        self.run("offsets", self.experts, *sizes, tiles, self.offsets, self.counts, sms, STREAM)
        shared = (self.peers["splits"], self.peers["barriers"])
        made = (self.bases, self.indices, self.mask, None, self.received, None, self.aligned, None, None)
        self.run("layout", self.experts, self.offsets, self.counts, *shared, *made, *sizes, self.rank, RANKS, sms, ROW_BLOCK, STREAM)

    def dispatch(self) -> None:
        """Rows to the ranks of their experts."""
        p, given = self.problem, (self.x, self.mask, None, self.experts, self.indices)
        self.barrier()
        to = (self.peers["rows"], self.peers["sources"], self.peers["sources"])  # no weights: their place is not written
        sizes = (self.sent, p.hidden // 2, p.experts_per_rank, self.rank, RANKS, self.job.sms)
        self.run("dispatch", *given, *to, *sizes, *FORMATS, p.topk, STREAM)
        self.barrier()

    def copy(self) -> None:
        """And there to the rows of all of their experts."""
        p, rows = self.problem, self.view("rows")
        sizes = (len(rows), p.hidden // 2, p.topk, self.rank, RANKS, LOCAL_CTAS)
        self.run("copy", rows, self.view("sources"), None, self.aligned, None, self.sources, *sizes, *FORMATS, STREAM)

    def sum_rows(self) -> None:
        """Results of a token on this rank, in place."""
        p, rows = self.problem, self.view("results")
        sizes = (len(rows), p.hidden, p.topk, self.rank, RANKS, LOCAL_CTAS)
        self.run("sum", rows, None, self.aligned, self.sources, None, *sizes, *FORMATS, STREAM)

    def combine(self) -> None:
        """Sums of what every rank has of a token."""
        p, given = self.problem, (self.peers["results"], None, self.mask, self.experts, self.indices, self.y, None)
        self.barrier()
        sizes = (self.sent, p.hidden, p.topk, p.experts_per_rank, self.rank, RANKS, self.job.sms)
        self.run("combine", *given, *sizes, *FORMATS, STREAM)
        self.barrier()

    def check(self) -> None:
        """Moves rows and results once, and looks at every element of both."""
        self.tables()
        self.dispatch()
        self.copy()
        synchronize()
        found: list[Any] = [None] * RANKS
        dist.all_gather_object(found, self.indices.cpu())
        p, rows, seen = self.problem, self.view("rows"), 0
        for rank, indices in enumerate(found):
            x, experts = sent_by(self.job.point, rank)
            here = (experts < p.num_experts) & (experts // p.experts_per_rank == self.rank)
            token = here.nonzero()[:, 0]
            there = rows[indices.cuda()[here].long()]
            assert torch.equal(there.view(torch.int16), x[token].view(torch.int16)), "dispatch: other rows"
            seen += len(token)
        assert seen == int(self.received[self.rank]), "dispatch: another number of rows"
        results = self.view("results")
        results.copy_(number(self.rank, torch.arange(len(results), device="cuda"))[:, None].expand_as(results))
        self.sum_rows()
        self.combine()
        synchronize()
        wanted = (
            torch.where(self.experts < p.num_experts, number(self.experts // p.experts_per_rank, self.indices), 0).sum(1).to(torch.bfloat16)
        )
        assert torch.equal(self.y, wanted[:, None].expand_as(self.y)), "combine: other sums"
        results.zero_()  # what is summed in place again and again stays finite


def number(rank: Any, row: torch.Tensor) -> torch.Tensor:
    """What every element of a row is, in the check: small enough for sums that are exact in BF16."""
    return (row + 5 * rank) % 11


def measure(job: Job, run: CudaLibrary) -> dict[str, Any]:
    """Times of each step, all ranks together, after a check of what they move."""
    rank = Rank(job, run)
    synchronize()
    rank.check()

    def both() -> None:
        rank.dispatch()
        rank.copy()

    def back() -> None:
        rank.sum_rows()
        rank.combine()

    # In graphs: a call of their wrapper takes the host as long as the kernel takes the GPU.
    times = time_graphs({"dispatch": both, "dispatch without copies": rank.dispatch, "tables": rank.tables})
    both()  # tables of the copies are of the last dispatch
    times |= time_graphs({"combine": back})
    record = {"us": {name: one.median for name, one in times.items()}, "sent": rank.sent, "pairs": int(rank.received[rank.rank])}
    rank.symmetric.close()
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path, help="of FlashComm's kernels")
    parser.add_argument("--preset", choices=PRESETS, default="flash", help="shape by name")
    parser.add_argument("--experts-per-rank", type=int, default=32, help="instead of all")
    parser.add_argument("--tokens", default="1024,4096,8192", help="per rank")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    given = parser.parse_args()
    options = RunOptions(preset=given.preset, experts_per_rank=given.experts_per_rank, tokens=given.tokens, ranks=str(RANKS))
    jobs = [Job(point, sms) for point in points_of(options, 0.875) for sms in SMS]
    run_peer("flash_comm", given.library, SYMBOLS, measure, jobs, given.out, lambda *_: "")


if __name__ == "__main__":
    main()
