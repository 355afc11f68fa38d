"""What can be said of a kernel on a GPU without one."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cuda.bindings import driver

from megamoe_dsl import SM90, GemmProblem, Target, choose
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.registry import KERNELS, kernel_of
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.runtime import cuda_kernel
from megamoe_dsl.runtime.cuda_kernel import CudaError, CudaKernel, bind_context, check_resident

PAIRS = choose(PRESETS["pro"].problem(8192, recipe="fp8xfp8"), Target(SM90, 132), 8192)


def test_clusters_that_do_not_run_at_once_are_an_error() -> None:
    """Before anything is launched: the kernel's CTAs would wait for ones that never start."""
    assert (PAIRS.cluster, PAIRS.num_sms) == (2, 132)
    check_resident(PAIRS, 66)
    with pytest.raises(ConfigError, match=r"num_sms = 132: must be at most 130: so many CTAs, in clusters of 2, run at once on this GPU"):
        check_resident(PAIRS, 65)


CONFIGS = {"pairs": PAIRS, "alone": choose(PRESETS["flash"].problem(8, recipe="fp8xfp8"), Target(SM90, 132), 8)}
CONFIGS["gemm"] = choose(GemmProblem(512, 512), Target(SM90, 132), 64)
ATTRIBUTE = driver.CUlaunchAttributeID
CURRENT = 3


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the driver's functions answer, by name; after a call, what each was given under `asked`."""
    found: dict[str, Any] = {"asked": {}, "cuLibraryLoadData": "library", "cuLibraryGetKernel": "kernel", "cuKernelGetFunction": "function"}

    def call(function: Any, *given: Any) -> Any:
        found["asked"][function.__name__] = given
        return found.get(function.__name__)

    monkeypatch.setattr(cuda_kernel, "call", call)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: CURRENT)
    sms = {CURRENT: SimpleNamespace(multi_processor_count=66)}
    monkeypatch.setattr(torch.cuda, "get_device_properties", sms.__getitem__)
    return found


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_kernel_is_launched_as_its_artifact_says(
    name: str, early: bool, answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the stream that is current then; CTAs that wait for one another must all run at once."""
    config = CONFIGS[name]
    family: Any = kernel_of(config)
    occupancy = "cuOccupancyMaxActiveClusters" if config.cluster > 1 else "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    answers[occupancy] = config.num_clusters if config.cluster > 1 else 2
    artifact: Any = SimpleNamespace(config=config, cubin=b"cubin", entry="entry", dynamic_smem=4321)
    kernel = CudaKernel(artifact, early)
    launch, asked = kernel._launch, answers["asked"]
    assert (asked["cuLibraryLoadData"][0], asked["cuLibraryGetKernel"]) == (b"cubin", ("library", b"entry"))
    smem = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert asked["cuKernelGetFunction"] == ("kernel",) and asked["cuFuncSetAttribute"] == ("function", smem, 4321)
    assert (launch.gridDimX, launch.gridDimY, launch.gridDimZ) == (config.num_sms, 1, 1)
    assert (launch.blockDimX, launch.blockDimY, launch.blockDimZ, launch.sharedMemBytes) == (config.num_threads, 1, 1, 4321)
    told = {one.id: one.value for one in launch.attrs}
    clusters = told.get(ATTRIBUTE.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
    dims = (1, 1, 1) if clusters is None else (clusters.clusterDim.x, clusters.clusterDim.y, clusters.clusterDim.z)
    assert dims == (config.cluster, 1, 1)
    serialized = told.get(ATTRIBUTE.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
    assert (serialized is not None and serialized.programmaticStreamSerializationAllowed == 1) == (family.early and early)
    if family.resident:
        assert asked[occupancy] == (("function", launch) if config.cluster > 1 else ("function", config.num_threads, 4321))
        answers[occupancy] = answers[occupancy] - 1
        with pytest.raises(ConfigError, match="run at once on this GPU"):
            CudaKernel(artifact, early)
    launched: list[Any] = []
    status = driver.CUresult.CUDA_SUCCESS
    monkeypatch.setattr(driver, "cuLaunchKernelEx", lambda one, *given: launched.append((int(one.hStream), *given)) or (status,))
    for stream in (5, 5, 7, 5):
        monkeypatch.setattr(cuda_kernel, "current_stream", {CURRENT: stream}.__getitem__)
        kernel.launch()
    assert launched == [(stream, "function", kernel.arguments.address, 0) for stream in (5, 5, 7, 5)]
    status = driver.CUresult.CUDA_ERROR_LAUNCH_FAILED
    monkeypatch.setattr(driver, "cuGetErrorString", lambda status: (None, b"failed"))
    with pytest.raises(CudaError, match="failed"):
        kernel.launch()


def test_kernels_whose_ctas_wait_for_one_another_are_known() -> None:
    """All CTAs of these must run at once; the others may begin before the launch before them has ended."""
    waiting = ("mega_moe", "route", "moe_dispatch", "moe_combine", "routing_tables", "dispatch_grouped_gemm", "grouped_gemm_combine")
    early = ("gemm", "gather_gemm", "varlen_k_gemm", "top_experts", "decode", "route", "topk_sum", "quantize_both", "quantize_weights")
    assert {one.name for one in KERNELS if one.resident} == set(waiting)
    assert {one.name for one in KERNELS if one.early} == set(early)


def test_a_thread_without_a_context_takes_the_current_devices(answers: dict[str, Any]) -> None:
    """One that has a context keeps it."""
    answers.update(cuCtxGetCurrent=9, cuDevicePrimaryCtxRetain="primary")
    bind_context()
    assert list(answers["asked"]) == ["cuCtxGetCurrent"]
    answers["cuCtxGetCurrent"] = 0
    bind_context()
    assert (answers["asked"]["cuDevicePrimaryCtxRetain"], answers["asked"]["cuCtxSetCurrent"]) == ((CURRENT,), ("primary",))
