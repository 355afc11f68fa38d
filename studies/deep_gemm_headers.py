"""DeepGEMM's headers where a wheel or a checkout has them."""

from __future__ import annotations

from pathlib import Path

from cuda_headers import CudaHeaders, HeadersError
from megamoe_dsl.bench.result_file import packages

PLACES = ("deep_gemm/include", "include", ".")
CUTE = "cute/tensor.hpp"
SM100_KERNEL = "impls/sm100_fp8_fp4_mega_moe.cuh"


def find_headers(site: Path, cutlass: Path | None, cache: Path) -> CudaHeaders:
    """Headers below a folder with an unpacked wheel (sgl-deep-gemm) or a checkout of DeepGEMM.

    cutlass  CUTLASS's include folder, for headers that do not bring it along
    cache    for what nvcc makes of them

    Raises HeadersError when there are none.
    """
    include = next((site / place for place in PLACES if (site / place / "deep_gemm" / SM100_KERNEL).is_file()), None)
    if include is None:
        raise HeadersError(f"{site} has no deep_gemm/{SM100_KERNEL} in {', '.join(PLACES)}")
    own_cute = include / CUTE.split("/")[0]
    if not own_cute.is_dir() and (cutlass is None or not (cutlass / CUTE).is_file()):
        raise HeadersError(f"{include} does not bring CUTLASS: --cutlass must name a folder with {CUTE}")
    found = [f"{name} {version}" for name, version in packages(str(site)).items() if "deep" in name.lower()]
    others = () if own_cute.is_dir() or cutlass is None else (cutlass,)
    return CudaHeaders(include / "deep_gemm", others, cache, found[0] if found else "a checkout of DeepGEMM")
