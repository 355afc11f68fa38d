"""The SM100 MegaMoE of sgl-deep-gemm 0.2.5 on simulated ranks, in fp8xfp4 and mxf4xmxf4, with results in BF16 and E4M3.

One wave of all experts, a pool for the worst case, and few stages, so that the ring wraps in short runs.  The kernel's shared experts and
other activations stay off.  Its own header says how large its workspace is; the buffers behind it follow one another.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from cuda_headers import CudaHeaders
from megamoe_dsl.arch import SM100
from megamoe_dsl.cases import Case
from megamoe_dsl.hardware.tensor_map import TensorMap, TensorMapDtype
from megamoe_dsl.layouts.arith import align
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import interleave_gate_up, transform_weights
from megamoe_dsl.quant.weights import rows_of_tiles
from megamoe_dsl.sim import Assumptions, GlobalMemory, Launch, Report, Simulator

HEADER = "deep_gemm/impls/sm100_fp8_fp4_mega_moe.cuh"
BLOCK_N, CLUSTER, STAGES = 128, 2, 4
ROLE_THREADS = 128  # of dispatch, and of loaders and MMA
SMEM = 227 << 10
ALIGNMENT, CAPACITY = 1024, 128  # of a buffer's bytes, and of its tokens
MAX_RANKS = 72  # places for ranks in its table of peers
TILES = {16: (8, 2), 32: (16, 2), 64: (32, 1), 96: (16, 2), 128: (32, 2), 192: (32, 2)}
"""BLOCK_M to tokens of a store and epilogue warpgroups."""
WEIGHTS = ("fc1", "fc1_sf", "fc2", "fc2_sf")


@dataclass(frozen=True)
class DeepGemmMegaMoe:
    """The kernel for one problem, hidden and intermediate a multiple of 512, and one tile; `problem.max_tokens_per_rank` is the buffer's
    capacity."""

    headers: CudaHeaders
    problem: Problem
    block_m: int
    num_sms: int

    @property
    def packed(self) -> bool:
        """Whether tokens have 4 bits."""
        return self.problem.formats.packs_activations

    @property
    def block_k(self) -> int:
        return 256 if self.packed else 128

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Rows of the pool and of its scales, and bytes of the workspace, by its own headers."""
        p = self.problem
        pool, scales, workspace = self.headers.numbers(f"""#include <algorithm>
#include <cstdio>
#include <deep_gemm/layout/mega_moe.cuh>
using namespace deep_gemm::layout;
int main() {{
    const unsigned pool = get_num_max_pool_tokens<unsigned>({p.num_ranks}, {p.max_tokens_per_rank}, {p.topk}, {p.experts_per_rank});
    unsigned scales = 0;
    for (unsigned block_m : kCandidateBlockM) scales = std::max(scales, get_num_sf_ring_tokens<unsigned>(pool, block_m));
    const Workspace workspace(nullptr, {p.num_ranks}, {p.num_experts}, {p.max_tokens_per_rank}, {p.topk}, pool);
    std::printf("%u %u %llu", pool, scales, (unsigned long long) workspace.get_num_bytes());
}}""")
        return pool, scales, workspace

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset of every buffer of the symmetric one, and `end`."""
        p, tokens, (pool, scales, at) = self.problem, self.problem.max_tokens_per_rank, self.sizes
        row, results = p.formats.activations.row_bytes, p.topk * tokens
        narrow = p.formats.combine.scale is not None
        sizes = {
            **{"x": row(p.hidden) * tokens, "x_sf": p.hidden // 32 * tokens},
            **{"topk_idx": 8 * results, "topk_weights": 4 * results},
            **{"fc1_acts": row(p.hidden) * pool, "fc1_sf": p.hidden // 32 * scales, "fc1_topk_weights": 4 * pool},
            **{"fc2_acts": row(p.intermediate) * pool, "fc2_sf": p.intermediate // 32 * scales},
            **{"combine": (1 if narrow else 2) * p.hidden * results, "combine_sf": p.hidden // 128 * results if narrow else 0},
            **{"outer_scales": 4 * (tokens + pool), "domains": self.num_sms},
        }
        found = {}
        for name, size in sizes.items():
            found[name], at = at, at + size
        return {**found, "end": at}

    def ptx(self) -> str:
        """Of the kernel.  Raises HeadersError."""
        p, (pool, scales, _), (store_m, warpgroups) = self.problem, self.sizes, TILES[self.block_m]
        kind, sf_block_m = "MmaKind::MXFP4" if self.packed else "MmaKind::MXFP8FP4", align(self.block_m, 128)
        pull = min(p.formats.activations.row_bytes(p.hidden), 4096)
        clamp = "cute::numeric_limits<float>::infinity()" if p.activation_clamp is None else f"{float(p.activation_clamp)!r}f"
        values: tuple[object, ...] = (
            *(p.max_tokens_per_rank, p.hidden, p.intermediate, p.num_experts, 0, p.topk, self.block_m, BLOCK_N, self.block_k),
            *(store_m, store_m, sf_block_m, BLOCK_N, kind, pool, scales, STAGES, pull),
            *(ROLE_THREADS, ROLE_THREADS, 128 * warpgroups, self.num_sms, p.num_ranks, clamp),
            *("0.0f", "false", str(p.fast_math).lower(), "false", "false", "false", "false"),  # other activations and scales
            *(str(p.formats.combine.scale is not None).lower(), "cutlass::detail::float_e2m1_unpacksmem_t"),
        )
        kernel = f"sm100_fp8_fp4_mega_moe_impl<{', '.join(map(str, values))}>"
        source = f"""#include <{HEADER}>
using namespace deep_gemm;
static void instantiate() {{ auto pointer = reinterpret_cast<void*>(&{kernel}); }}
"""
        return self.headers.ptx(source, "sm_100a")

    def weights(self, case: Case, rank: int) -> dict[str, torch.Tensor]:
        """A rank's weights in our order of rows, but for gate and up of mxf4xmxf4: of 16 of each the even ones, then the odd ones."""
        given = case.weights[rank]
        if self.packed:
            rows = torch.arange(given.fc1.shape[1])
            halves = rows.view(2, -1, 8, 2).permute(1, 3, 0, 2).flatten()  # of 16 rows: parity, then gate and up
            order = torch.empty_like(rows)
            order[interleave_gate_up(rows[:, None]).flatten()] = halves
            given = replace(given, fc1=given.fc1[:, order], fc1_sf=given.fc1_sf[:, order])
        found = transform_weights(self.problem, SM100, given)
        return {name: rows_of_tiles(one) if (one := getattr(found, name)).ndim == 5 else one for name in WEIGHTS}

    def maps(self, sym: int, weights: dict[str, torch.Tensor]) -> list[TensorMap]:
        """In the order of its parameters; `sym` is the address of the rank's buffer."""
        p, (pool, scales, _), local, byte = self.problem, self.sizes, self.problem.experts_per_rank, TensorMapDtype.U8
        at, words, per_byte = {name: sym + offset for name, offset in self.offsets.items()}, TensorMapDtype.U32, 2 if self.packed else 1
        codes, step = (byte, 2) if self.packed else (TensorMapDtype.FP4_UNPACKED, 1)

        def linear(name: str, k: int, n: int) -> list[TensorMap]:
            address, sf, row, box = weights[name].data_ptr(), weights[f"{name}_sf"].data_ptr(), k // 2, self.block_k // 128
            width, own = k // per_byte, self.block_k // per_byte
            return [
                TensorMap(at[f"{name}_acts"], byte, (width, pool), (width,), (own, self.block_m // 2), 128),
                TensorMap(at[f"{name}_sf"], words, (scales, k // 128), (4 * scales,), (align(self.block_m, 128), box)),
                TensorMap(
                    *(address, codes, (k // step, n // 2, 2, local), (row, row * (n // 2), row * n)),  # halves of an expert's rows
                    *((self.block_k // step, BLOCK_N, 1, 1), 128),
                ),
                TensorMap(sf, words, (n, local * k // 128), (4 * n,), (BLOCK_N, box)),
            ]

        width, box = p.intermediate // per_byte, BLOCK_N // 2 // per_byte
        stored = TensorMap(at["fc2_acts"], byte, (width, pool), (width,), (box, TILES[self.block_m][0]), box)
        return [*linear("fc1", p.hidden, 2 * p.intermediate), stored, *linear("fc2", p.intermediate, p.hidden)]

    def run(self, case: Case, launches: int) -> tuple[list[list[torch.Tensor]], Report]:
        """So many launches without a pause on zeroed buffers: y of each, per rank bf16 [T, hidden], and what the simulator saw.

        Raises SimError and HeadersError."""
        memory, ranks, tokens, size = GlobalMemory(), range(self.problem.num_ranks), [len(x) for x in case.x], self.offsets["end"]
        rooms = [torch.zeros(size + ALIGNMENT, dtype=torch.uint8) for _ in ranks]
        buffers = [room[-room.data_ptr() % ALIGNMENT :][:size] for room in rooms]
        addresses = [sym.data_ptr() for sym in buffers]
        weights = [self.weights(case, rank) for rank in ranks]
        stats = [torch.zeros(self.problem.experts_per_rank, dtype=torch.int32) for _ in ranks]
        outputs = [[torch.empty(max(1, n), self.problem.hidden, dtype=torch.bfloat16) for n in tokens] for _ in range(launches)]
        for rank, sym in enumerate(buffers):
            sym[self.offsets["domains"] :][: self.num_sms] = torch.arange(self.num_sms) // CLUSTER % 2  # parts of the GPU's memory
            for name in ("x", "x_sf", "topk_idx", "topk_weights"):
                values = getattr(case, name)[rank].contiguous().view(torch.uint8).flatten()
                sym[self.offsets[name] :][: len(values)] = values
            memory.add(sym, name="sym", rank=rank)
            memory.add(stats[rank], name="stats", rank=rank)
            for name, tensor in weights[rank].items():
                memory.add(tensor, name=name, rank=rank, read_only=True)
            for number, y in enumerate(outputs):
                memory.add(y[rank], name=f"y{number}", rank=rank, initialized=False)

        def launch(rank: int, y: torch.Tensor) -> Launch:
            maps, sym = [one.encode() for one in self.maps(addresses[rank], weights[rank])], addresses[rank]
            distances = [address - sym for address in addresses] + [0] * (MAX_RANKS - len(addresses))
            peers = struct.pack(f"<q{MAX_RANKS}qII", sym, *distances, rank, 0)
            shared_experts = maps  # there are none, and their maps are never used
            args = (
                y.data_ptr(),
                stats[rank].data_ptr(),
                0,
                0,
                0,
                0,
                tokens[rank],
                peers,
                *maps,
                *shared_experts,
                sym + self.offsets["domains"],
            )
            block = 2 * ROLE_THREADS + 128 * TILES[self.block_m][1]
            shape = {"grid": (self.num_sms, 1, 1), "block": (block, 1, 1), "cluster": (CLUSTER, 1, 1)}
            return Launch(**shape, dynamic_smem=SMEM, args=args, rank=rank)

        simulator = Simulator(self.ptx(), memory, assumptions=Assumptions(store_uninitialized=True))
        report = simulator.run([launch(rank, y[rank]) for y in outputs for rank in ranks])
        return [[y[:n] for y, n in zip(some, tokens, strict=True)] for some in outputs], report
