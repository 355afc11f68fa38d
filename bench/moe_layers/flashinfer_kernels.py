"""Both GEMMs of FlashInfer's BF16 layer on Hopper, compiled by CuTe DSL, without the host code around them."""

import sys
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import BFloat16, Float32, Int32, Int64

from baselines.site import import_from

FOLDERS = ("flashinfer", "flashinfer.fused_moe", "flashinfer.fused_moe.cute_dsl", "flashinfer.fused_moe.cute_dsl.hopper")
"""Packages whose `__init__` would import all of FlashInfer."""
UNUSED = {"jit": {}, "jit.moe_utils": {"gen_moe_utils_module": None}, "api_logging": {"flashinfer_api": lambda function: function}}
"""What the kernels' files import and do not run."""
NUM_SMS = 132
COMMON: dict[str, Any] = {"acc_dtype": Float32, "raster_along_m": False, "enable_pdl": True}
Launch = Callable[..., None]


def module(name: str, **contents: Any) -> None:
    """In the place of one that would import more."""
    sys.modules[name] = made = ModuleType(name)
    for key, value in contents.items():
        setattr(made, key, value)


def kernels(site: Path) -> tuple[Any, Any]:
    """Their classes.  Raises `ImportError` where the folder lacks something."""
    for name in FOLDERS:
        module(name, __path__=[str(site.joinpath(*name.split(".")))])
    for name, values in UNUSED.items():
        module(f"{FOLDERS[0]}.{name}", __path__=[], **values)
    files = "contiguous_gather_grouped_gemm_act_fusion", "contiguous_grouped_gemm_finalize_fusion"
    gather, finalize = (import_from(f"{FOLDERS[-1]}.{one}", site) for one in files)
    return gather.Sm90ContiguousGatherGroupedGemmActFusionKernel, finalize.Sm90ContiguousGroupedGemmFinalizeFusionKernel


def pointer(kind: Any, address: Any) -> Any:
    """To values of a kind; rows of BF16 are aligned as TMA asks for."""
    return cute.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=16 if kind is BFloat16 else 4)


bf16, i32, f32 = (partial(pointer, kind) for kind in (BFloat16, Int32, Float32))


def made(function: Any, count: int) -> Launch:
    """Compiled, of so many integers and a stream."""
    launch = cute.compile(function, *(Int64(0),) * count, CUstream(0), options="--gpu-arch=sm_90a")
    return lambda *given: launch(*map(Int64, given[:-1]), CUstream(given[-1]))


@lru_cache
def compiled_gather(site: Path, rows: int, columns: int, topk: int) -> Launch:
    """The first GEMM, with tiles of so many rows and columns.  Arguments are addresses, sizes and a stream."""
    first = kernels(site)[0](tile_shape_mn=(rows, columns), topk=topk, **COMMON)

    @cute.jit
    def fc1(
        a: Int64, b: Int64, d: Int64, g: Int64, e: Int64, s: Int64, c: Int64, t: Int64, m: Int64, n: Int64, k: Int64, q: Int64, stream: Any
    ):
        places = bf16(a), bf16(b), bf16(d), i32(g), i32(e), i32(s), i32(c)
        first.wrapper(*places, t, m, n, k, q, max_active_clusters=NUM_SMS, stream=stream)

    return made(fc1, 12)


@lru_cache
def compiled_finalize(site: Path, rows: int, columns: int, cluster: int, topk: int, adds: bool) -> Launch:
    """The second one.  It adds weighted rows to y, or keeps the row of every slot of a token."""
    second = kernels(site)[1](tile_shape_mn=(rows, columns), topk=topk, use_fused_finalize=adds, cluster_shape_mn=(1, cluster), **COMMON)

    @cute.jit
    def fc2(
        a: Int64,
        b: Int64,
        y: Int64,
        g: Int64,
        e: Int64,
        s: Int64,
        c: Int64,
        w: Int64,
        m: Int64,
        n: Int64,
        k: Int64,
        q: Int64,
        t: Int64,
        stream: Any,
    ):
        places = bf16(a), bf16(b), bf16(y), i32(g), i32(e), i32(s), i32(c), f32(w)
        out_rows = t if adds else t * topk
        second.wrapper(*places, m, n, k, q, t, out_rows, max_active_clusters=NUM_SMS // cluster, stream=stream)

    return made(fc2, 13)
