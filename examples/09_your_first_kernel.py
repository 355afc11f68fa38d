"""Your first kernel: a dense FP8 GEMM for Hopper made of blocks, written, compiled, simulated, raced and inspected without a GPU.

D[M, N] = A[M, K] x B[N, K] with E4M3 operands, FP32 scales (one for a row of A and 128 of K, one for 128 x 128 of B) and FP32 results.
docs/tutorials/first_kernel.md walks through it. Main loop, loaders and order of tiles are blocks. What a kernel writes itself is here:

1. a configuration, with a plan of shared memory and tensor maps
2. the arguments of a launch, and the context that roles share
3. the epilogue
4. the roles: two loader warps and eight math warps
5. the kernel, which gives warps to roles, and its launch
6. what you do with it: compile, simulate, compare with torch, plant a race and find it, look at PTX and machine code
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")

import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
import torch
from cutlass import Boolean, Int32, Int64

from megamoe_dsl import SM90, Arch, sim
from megamoe_dsl.blocks import (
    CHUNK_ROWS,
    ColumnShare,
    Fetch,
    MathThread,
    OperandMaps,
    RowShare,
    ScaleMatrix,
    Share,
    TokenTile,
    Walk,
    WarpRole,
    WeightScales,
    WeightTile,
    advance_to_valid,
    load_tokens,
    load_weights,
    next_block,
    run_roles,
    warp_group,
)
from megamoe_dsl.device import ClusterPlace, Stage, acquire_tensor_map, attribute_lines, launcher, mbarrier, smem_base, store_f32
from megamoe_dsl.hardware import BLOCK_K, DESCRIPTOR_BYTES, TensorMap, TensorMapDtype
from megamoe_dsl.inspect import disassemble
from megamoe_dsl.layouts import F32, U8, U64, Field, Region, select
from megamoe_dsl.quant import tile_sm90
from megamoe_dsl.schedule import DenseOrder, GemmBlock

TILE_ROWS = 256
MATH_WARPS, FIRST_MATH_WARP = 8, 4
MAPS = TOKENS, TOKENS_HALF, WEIGHTS, SCALES = range(4)

# 1. The configuration: all that is known when the kernel is compiled.


@dataclass(frozen=True)
class GemmConfig:
    """What the compiler knows of the problem and of the kernel's shape.

    n, k            B is [n, k]: n a multiple of 256, k of 128
    block_m         rows of A in a tile: up to 32 are the wgmma's columns, 128 its rows
    tiled           B lies in tiles (quant.tile_sm90); otherwise K-major
    num_sms         CTAs, one for an SM; each takes every num_sms-th tile
    num_stages      pipeline stages in shared memory
    group_m         blocks of A's rows that neighboring tiles share, for L2
    epilogue        what becomes of a thread's sums of a tile
    waits_per_tile  False plants a race: math warps wait for the first stage of the first tile, and of no other tile
    """

    arch: ClassVar[Arch] = SM90
    num_threads: ClassVar[int] = 32 * (FIRST_MATH_WARP + MATH_WARPS)
    cluster: ClassVar[int] = 1

    n: int
    k: int
    block_m: int
    tiled: bool
    num_sms: int
    num_stages: int = 2
    group_m: int = 2
    epilogue: Any = field(default_factory=lambda: Store())
    waits_per_tile: bool = True

    @property
    def n_blocks(self) -> int:
        return self.n // TILE_ROWS

    @property
    def k_blocks(self) -> int:
        return self.k // BLOCK_K

    @property
    def swap_ab(self) -> bool:
        return self.block_m <= 32

    @cached_property
    def region(self) -> Region:
        """The plan of shared memory. Blocks find their buffers by these names."""
        stages = self.num_stages
        return Region.stack(
            "smem",
            Field("weights", (stages, TILE_ROWS * BLOCK_K), U8, 1024),
            Field("tokens", (stages, self.block_m * BLOCK_K), U8, 1024),
            Field("sfa", (stages, max(self.block_m, 32)), F32, 128),
            Field("full_barrier", (stages,), U64),
            Field("empty_barrier", (stages,), U64),
        )

    def tensor_maps(self, a: int, sfa: int, b: int, m: int) -> list[TensorMap]:
        """Tensor maps of A [m, k], of B, and of A's scales [k / 128, m], at these addresses; `m` is a multiple of 4."""

        def rows(address: int, width: int, height: int, box: int) -> TensorMap:
            return TensorMap(address, TensorMapDtype.U8, (width, height), (width,), (BLOCK_K, box), 128)

        half = self.block_m if self.swap_ab else self.block_m // 2
        return [
            rows(a, self.k, m, self.block_m),
            rows(a, self.k, m, half),
            rows(b, BLOCK_K, self.n * self.k_blocks, TILE_ROWS) if self.tiled else rows(b, self.k, self.n, TILE_ROWS),
            TensorMap(sfa, TensorMapDtype.U32, (m, self.k_blocks), (4 * m,), (self.block_m, 1), 0),
        ]


# 2. What a launch is given, and what the roles share.


@dataclass(frozen=True)
class GemmArguments:
    """Addresses of the table of tensor maps, of B's scales [n / 128, k / 128] and of D [m, n]; m is no constant of the kernel."""

    maps: Int64
    sfb: Int64
    d: Int64
    m: Int32


@dataclass(frozen=True)
class TracedDense(DenseOrder):
    """The order of tiles, with a number of rows that only the launch knows."""

    config: cutlass.Constexpr[GemmConfig]
    rows: Int32


@dataclass(frozen=True)
class Gemm:
    """The context of every role. Loaders and math warps walk the same tiles and the same ring of stages."""

    config: cutlass.Constexpr[GemmConfig]
    args: GemmArguments
    smem: Int32

    def walk(self) -> Walk:
        order = TracedDense(self.config, self.args.m)
        return advance_to_valid(Walk.start(order, cute.arch.block_idx()[0], self.config.num_sms, Int32))

    def stage(self) -> Stage:
        return Stage.first(self.config.region, self.smem, self.config.num_stages)

    def map(self, which: int) -> Any:
        return self.args.maps + which * DESCRIPTOR_BYTES

    def is_half(self, block: GemmBlock) -> Any:
        return False if self.config.swap_ab else block.valid_m <= 64


# 3. The epilogue: from a thread's FP32 sums to D.


@dataclass(frozen=True)
class Store:
    """Stores a thread's sums, a tuple for each part of its share, as they are; `tests/toy/add_and_clamp.py` is another epilogue."""

    def finish(self, gemm: Gemm, block: GemmBlock, me: Share, sums: Any) -> None:
        store_tile(gemm, block, me, sums)


@cute.jit
def store_tile(gemm: Gemm, block: GemmBlock, me: Share, sums: Any):
    """Stores a thread's values of a tile; rows past A's last are left out."""
    config = gemm.config
    for part in cutlass.range_constexpr(len(sums)):
        for pair in cutlass.range_constexpr(len(sums[part]) // 2):
            for i in cutlass.range_constexpr(2 * pair, 2 * pair + 2):
                token, row = place_of(config, me, part, i)
                if token < block.valid_m:
                    index = Int64(block.m_block * config.block_m + token) * config.n + (block.n_block * TILE_ROWS + row)
                    store_f32(gemm.args.d + index * 4, sums[part][i])


def place_of(config: GemmConfig, me: Share, part: int, i: int) -> tuple[Any, Any]:
    """Row of A and row of B, within the tile, of a value of the accumulator; the shares' docstrings say why."""
    j, h, e = i // 4, i // 2 % 2, i % 2
    if config.swap_ab:
        return 8 * j + me.pair + e, me.group * 128 + 64 * part + 16 * me.warp + me.row + 8 * h
    return me.token + 8 * h, (me.first_chunk + part) * CHUNK_ROWS + 8 * j + me.pair + e


# 4. The roles.


@cute.jit
def run_token_loader(gemm: Gemm, warp: Int32):
    """One warp: for every K block of every tile, waits for a free stage and has TMA fill it with rows of A and their scales."""
    config = gemm.config
    blocks, stage = gemm.walk(), gemm.stage()
    half_rows = config.block_m if config.swap_ab else config.block_m // 2
    while blocks.valid():
        block = blocks.block()
        half = gemm.is_half(block)
        maps = OperandMaps(gemm.map(TOKENS_HALF), gemm.map(TOKENS), half_rows)
        tokens = Fetch.of(maps, ClusterPlace(Int32(0), 1), half, False)
        rows = select(half, Int32(half_rows), Int32(config.block_m))
        num_bytes = rows * BLOCK_K + 4 * config.block_m
        tile = TokenTile(tokens, block.m_block * config.block_m, rows, num_bytes, gemm.map(SCALES))
        stage = load_tokens(stage, tile, Int32(config.k_blocks))
        blocks = next_block(blocks)


@cute.jit
def run_weight_loader(gemm: Gemm, warp: Int32):
    """One warp: the same for rows of B."""
    config = gemm.config
    blocks, stage = gemm.walk(), gemm.stage()
    while blocks.valid():
        maps = OperandMaps(gemm.map(WEIGHTS), gemm.map(WEIGHTS), TILE_ROWS)
        weights = Fetch.of(maps, ClusterPlace(Int32(0), 1), False, False)
        row = blocks.block().n_block * (TILE_ROWS * config.k_blocks if config.tiled else TILE_ROWS)
        tile = WeightTile(weights, row, TILE_ROWS if config.tiled else 0, TILE_ROWS * BLOCK_K)
        stage = load_weights(stage, tile, Int32(config.k_blocks))
        blocks = next_block(blocks)


@cute.jit
def run_math(gemm: Gemm, warp: Int32):
    """Two warpgroups: each multiplies its share of every tile and stores it."""
    config = gemm.config
    number = warp - FIRST_MATH_WARP
    me = MathThread(number >> 2, number & 3, cute.arch.lane_idx())
    blocks, stage = gemm.walk(), gemm.stage()
    if cutlass.const_expr(not config.waits_per_tile):
        stage.wait_full()
    while blocks.valid():
        block = blocks.block()
        if cutlass.const_expr(config.swap_ab):
            stage = compute(gemm, block, ColumnShare.of(me, config.block_m), stage)
        else:
            if gemm.is_half(block):
                stage = compute(gemm, block, RowShare.of(me, half=True), stage)
            else:
                stage = compute(gemm, block, RowShare.of(me, half=False), stage)
        blocks = next_block(blocks)


@cute.jit
def compute(gemm: Gemm, block: GemmBlock, me: Share, stage: Stage):
    """The main loop and the epilogue of a tile. Returns the stage after the tile's last."""
    config = gemm.config
    matrix = ScaleMatrix(gemm.args.sfb, Int32(config.k_blocks), config.k_blocks)
    first = block.n_block * 2 + (me.group if me.has_own_weights else 0)
    second = first + (0 if me.has_own_weights else 1)
    scales = WeightScales((matrix.load(first, me.lane), matrix.load(second, me.lane)), Boolean(False))
    if cutlass.const_expr(config.waits_per_tile):
        stage.wait_full()
    sums, stage = me.multiply_tile(stage, scales, Int32(config.k_blocks))
    config.epilogue.finish(gemm, block, me, sums)
    return stage


# 5. The kernel: a table of roles, and one CTA.

LOADERS = (WarpRole("token loader", range(0, 1), run_token_loader), WarpRole("weight loader", range(1, 2), run_weight_loader))
ROLES = (
    warp_group("loaders", range(FIRST_MATH_WARP), LOADERS, registers=40),
    WarpRole("math", None, run_math, registers=232, grows=True),  # of a thread: with the loaders' they fit the 65,536 of an SM
)


@cute.kernel
def gemm_kernel(config: cutlass.Constexpr[GemmConfig], args: GemmArguments):
    """One CTA: one thread initializes the mbarriers, then every warp runs its role."""
    buffer: Any = cutlass.Array(cutlass.Int8, config.region.size, space=cutlass.AddressSpace.smem, alignment=1024)
    warp, thread = cute.arch.warp_idx(), cute.arch.thread_idx()[0]
    gemm = Gemm(config, args, smem_base(buffer))
    if thread == 0:
        for i in cutlass.range_constexpr(config.num_stages):
            mbarrier.init(config.region.address(gemm.smem, "full_barrier", i), 2)
            mbarrier.init(config.region.address(gemm.smem, "empty_barrier", i), MATH_WARPS)
        mbarrier.fence_init()
        for which in cutlass.range_constexpr(len(MAPS)):
            acquire_tensor_map(gemm.map(which))
    cute.arch.sync_threads()
    run_roles(ROLES, gemm, warp)


gemm = launcher(gemm_kernel, GemmArguments, lambda config, args: (), ctas_per_sm=1)


# 6. What you do with it.


def compile_gemm(config: GemmConfig) -> tuple[str, bytes]:
    """PTX and machine code for SM90, with line information: findings name the lines of this file that call a block."""
    arguments = GemmArguments(Int64(0), Int64(0), Int64(0), Int32(0))
    with tempfile.TemporaryDirectory() as folder, attribute_lines(Path(__file__).parent):
        options = f"--gpu-arch=sm_90a --keep-ptx --keep-cubin --generate-line-info --dump-dir={folder}"
        compiled = cute.compile(gemm, config, arguments, driver.CUstream(0), options=options)
        return compiled.__ptx__, compiled.__cubin__


@dataclass(frozen=True)
class Operands:
    """Quantized matrices as the kernel reads them, and their product in FP32.

    a    E4M3 [m, k], rows padded to a multiple of 4
    sfa  FP32 [k / 128, m], padded likewise
    b    E4M3 [n, k]
    sfb  FP32 [n / 128, k / 128]
    """

    m: int
    a: torch.Tensor
    sfa: torch.Tensor
    b: torch.Tensor
    sfb: torch.Tensor
    product: torch.Tensor

    @staticmethod
    def random(m: int, n: int, k: int, seed: int = 0) -> Operands:
        """Small integers and powers of two: every sum is exact, so results can be compared bit for bit."""
        generator = torch.Generator().manual_seed(seed)
        a, b = (torch.randint(-3, 4, (rows, k), generator=generator).float() for rows in (m, n))
        sfa, sfb = (torch.exp2(torch.randint(-2, 3, (rows, k // 128), generator=generator)) for rows in (m, n // 128))
        product = (a * sfa.repeat_interleave(128, 1)) @ (b * sfb.repeat_interleave(128, 0).repeat_interleave(128, 1)).T
        padding = (0, 0, 0, -m % 4)
        a, sfa = torch.nn.functional.pad(a, padding), torch.nn.functional.pad(sfa, padding)
        return Operands(m, a.to(torch.float8_e4m3fn), sfa.T.contiguous(), b.to(torch.float8_e4m3fn), sfb, product)


def simulate(config: GemmConfig, ptx: str, operands: Operands, seed: int = 0) -> tuple[torch.Tensor, sim.Report]:
    """D and the simulator's report."""
    inputs = [operands.a, operands.sfa, tile_sm90(operands.b) if config.tiled else operands.b]
    addresses = (one.data_ptr() for one in inputs)
    maps = aligned(b"".join(one.encode() for one in config.tensor_maps(*addresses, len(operands.a))))
    d = torch.empty(operands.m, config.n)
    geometry = sim.Geometry((config.num_sms, 1, 1), (config.num_threads, 1, 1), dynamic_smem=config.region.size)
    report = sim.run(ptx, maps, operands.sfb, d, operands.m, geometry=geometry, buffers=inputs, outputs=[d], seed=seed)
    return d, report


def aligned(data: bytes) -> torch.Tensor:
    """Bytes at a multiple of 128, which tensor maps need."""
    store = torch.zeros(len(data) + 128, dtype=torch.uint8)
    start = -store.data_ptr() % 128
    return store[start : start + len(data)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))


def main() -> None:
    config = GemmConfig(n=512, k=384, block_m=128, tiled=True, num_sms=2)
    operands = Operands.random(200, config.n, config.k)

    ptx, cubin = compile_gemm(config)
    d, report = simulate(config, ptx, operands)
    print(f"D[{operands.m}, {config.n}] equals torch's: {torch.equal(d, operands.product)}; {report}")
    assert torch.equal(d, operands.product) and not report.findings

    # With a wait for the first tile alone D is still right: TMA happens to be fast enough. The detector checks the order, not the values.
    hasty = replace(config, waits_per_tile=False)
    d, report = simulate(hasty, compile_gemm(hasty)[0], operands)
    print(f"a wait dropped, D equals torch's: {torch.equal(d, operands.product)}; {len(report.findings)} findings, the first:")
    print(f"  {report.findings[0]}")
    assert report.findings[0].kind == "RAW race"

    # PTX: a K block is four wgmmas of K = 32 for each chunk of 128 rows of B. A whole tile has two chunks, a half tile one.
    operations = Counter(line.split()[0] for line in ptx.splitlines() if line.startswith("\t"))
    for name in ("cp.async.bulk.tensor", "wgmma.mma_async", "mbarrier.try_wait", "st.global"):
        print(f"PTX {name}: {sum(count for operation, count in operations.items() if operation.startswith(name))}")

    # Machine code: the same number of tensor core instructions, and no value that left its register for the stack.
    listing = disassemble(cubin)
    kinds = Counter(one.kind for one in listing.instructions)
    print("machine code: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(6)))
    print(f"(loads, stores) of spills: {listing.spills}; registers up to R{max(one.highest for one in listing.instructions)}")
    assert kinds["mma"] == 12 and listing.spills == (0, 0)


if __name__ == "__main__":
    main()
