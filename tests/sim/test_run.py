"""`sim.run`: host functions of CuTe DSL and PTX texts with numpy and torch arguments."""

import ctypes
import gc
from pathlib import Path

import cutlass
import cutlass.cute as cute
import dsl_kernels
import numpy as np
import pytest
import torch
from cutlass.cute.runtime import from_dlpack
from cutlass.cutlass_dsl import cuda_jit_executor
from ptx_cases import module

from megamoe_dsl.hardware.tensor_map import TensorMap, TensorMapDtype
from megamoe_dsl.sim import Assumptions, DeviceArray, Geometry, PerRank, SimError, run
from megamoe_dsl.sim.host.module import HostModule, SimulatedDevice, launches_on
from megamoe_dsl.testing import assert_no_findings, check_schedules

ADD = module(
    "mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [a]; mad.wide.u32 %rd2, %r1, 4, %rd1; ld.global.b32 %r2, [%rd2]; "
    "ld.param.u32 %r3, [n]; add.u32 %r2, %r2, %r3; st.global.b32 [%rd2], %r2;",
    [".param .u64 a", ".param .u32 n"],
)
ONE_WARP = Geometry((1, 1, 1), (32, 1, 1))


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_host_function_on_torch_tensors(arch, dtype):
    a, b = torch.arange(100, dtype=dtype), torch.zeros(100, dtype=dtype)
    report = run(dsl_kernels.scale, a, b, cutlass.Float32(2), 1.0, arch=arch, outputs=[b])
    assert torch.equal(b, a * 2 + 1) and report.instructions
    assert_no_findings(report)


def test_several_launches_follow_each_other():
    a, b, c = np.arange(70, dtype=np.float32), np.zeros(70, np.float32), np.zeros(70, np.float32)
    assert_no_findings(run(dsl_kernels.scale_twice, a, b, c, cutlass.Float32(3), outputs=[b, c]))
    assert (c == (a * 3 + 1) * 3).all()


def test_the_driver_is_not_asked_to_unload_what_it_has_not_loaded(monkeypatch):
    """A GPU's driver crashes at such a handle."""
    unloaded = []
    monkeypatch.setattr(cuda_jit_executor.cuda_runtime, "cudaLibraryUnload", unloaded.append)
    a, b = np.zeros(4, np.float32), np.zeros(4, np.float32)
    run(dsl_kernels.scale, a, b, cutlass.Float32(2), 1.0, outputs=[b])
    gc.collect()
    assert (b == 1).all() and not unloaded


def test_launches_that_begin_early():
    """By programmatic dependent launch: exact where each waits, else a race."""
    a = np.zeros(dsl_kernels.THREADS, np.int32)
    assert_no_findings(run(dsl_kernels.count_up, a, True))
    assert (a == 3).all()
    assert run(dsl_kernels.count_up, a, False).findings


def test_a_tensor_with_a_dynamic_layout():
    a, b = torch.arange(65.0), torch.zeros(65)
    given = [from_dlpack(DeviceArray(one), assumed_align=16).mark_layout_dynamic() for one in (a, b)]
    run(dsl_kernels.scale, *given, cutlass.Float32(2), 0.0)
    assert torch.equal(b, a * 2)


def test_a_tensor_map_of_the_host_function():
    matrix = torch.arange(64.0 * 32).reshape(64, 32)
    tile = torch.zeros(8, 16)
    assert_no_findings(run(dsl_kernels.tile_copy, matrix, tile, (8, 16), arch="sm_90a"))
    assert torch.equal(tile, matrix[:8, :16])


def test_findings_name_lines_of_the_host_functions_file():
    findings = run(dsl_kernels.reverse, np.zeros(64, np.float32), False).findings
    lines = Path(dsl_kernels.__file__).read_text().splitlines()
    number = {text.strip(): place for place, text in enumerate(lines, 1)}
    read, write = number["value = a[THREADS - 1 - thread]"], number["a[thread] = value"]
    assert {finding.kind for finding in findings} == {"RAW race", "WAR race"}
    for finding in findings:
        assert {finding.first_source, finding.second_source} == {f"dsl_kernels.py:{read}", f"dsl_kernels.py:{write}"}
        assert finding.where.startswith("a@rank0")


def test_findings_of_unrolled_lines_are_one_by_source():
    report = run(dsl_kernels.reverse_often, np.zeros(64, np.float32), 4)
    assert len(report.findings) > len(report.by_source()) >= 2
    assert sum(one.count for one in report.findings) == sum(one.count for one in report.by_source())
    assert f"{len(report.by_source())} findings" in str(report)


def test_ranks_run_together():
    buffers = [torch.full((32,), -1, dtype=torch.int32) for _ in range(3)]
    peers = torch.tensor([one.data_ptr() for one in buffers])
    run(dsl_kernels.to_peer, peers, PerRank(*map(cutlass.Int32, range(3))), 3, ranks=3, buffers=buffers)
    for rank, one in enumerate(buffers):
        assert one.tolist() == [100 * ((rank - 1) % 3) + thread for thread in range(32)]


def test_a_function_compiled_for_tvm_ffi(monkeypatch):
    launched, handles, load_once = [], [], HostModule._load_once
    monkeypatch.setattr(HostModule, "_load_once", lambda one, handle, *how: (handles.append(handle), load_once(one, handle, *how)))
    fake = cute.runtime.make_fake_compact_tensor(cutlass.Float32, (cute.sym_int32(),), stride_order=(0,))
    with launches_on(SimulatedDevice("sm_90a", 4, launched.append)):
        compiled = cute.compile(dsl_kernels.scale, fake, fake, cutlass.Float32(2), 0.0, options="--enable-tvm-ffi")
    tensors = [cute.runtime.from_dlpack(DeviceArray(torch.zeros(300)), enable_tvm_ffi=True) for _ in range(2)]
    compiled(*tensors, 2.0)
    compiled(*tensors, 3.0)
    assert [(one.grid, one.block) for one in launched] == [((5, 1, 1), (64, 1, 1))] * 2
    assert [ctypes.c_void_p.from_address(one).value for one in handles] == [None] * 2  # a driver would unload any other
    assert int.from_bytes(launched[0].args[0][:8], "little") == tensors[0].data_ptr


def test_ptx_with_numpy_and_numbers():
    a = np.arange(32, dtype=np.int32)
    run(ADD, a, 5, geometry=ONE_WARP)
    run(ADD, a, np.uint32(1), geometry=ONE_WARP, entry="kernel")
    assert (a == np.arange(32) + 6).all()


def test_ptx_with_a_tensor_map_and_a_float():
    text = module("ld.param.b64 %rd1, [y]; ld.param.b32 %r1, [map+32]; st.global.b32 [%rd1], %r1; ld.param.b32 %r2, [f]; "
                  "st.global.b32 [%rd1+4], %r2;", [".param .align 64 .b8 map[128]", ".param .u64 y", ".param .f32 f"])  # fmt: skip
    matrix, y = torch.zeros(16, 8), torch.zeros(2, dtype=torch.int32)
    encoded = TensorMap(matrix.data_ptr(), TensorMapDtype.F32, (8, 16), (32,), (4, 4)).encode()
    run(text, encoded, y, 1.5, geometry=ONE_WARP, races=False)
    assert y.tolist() == [7, 0x3FC00000]


def test_what_a_run_takes_for_granted():
    text = module("ld.param.b64 %rd1, [y]; elect.sync %r1|%p1, -1; @%p1 st.global.b32 [%rd1], %r1;", [".param .u64 y"])
    y = np.zeros(1, np.uint32)
    run(text, y, geometry=ONE_WARP, assumptions=Assumptions(leader=9))
    assert y.tolist() == [9]


def test_a_view_and_its_tensor_are_one_buffer():
    whole = torch.arange(128.0)
    run(dsl_kernels.scale, whole[:64], whole[64:], cutlass.Float32(2), 0.0, buffers=[whole])
    assert torch.equal(whole[64:], 2 * whole[:64])


def test_memory_that_was_not_named_is_out_of_bounds():
    other = np.zeros(32, np.int32)
    with pytest.raises(SimError, match="out of bounds"):
        run(ADD, int(other.ctypes.data), 5, geometry=ONE_WARP)


def test_reading_an_output_is_an_error():
    a = np.zeros(32, np.int32)
    with pytest.raises(SimError, match="uninitialized global memory: argument 0"):
        run(ADD, a, 5, geometry=ONE_WARP, outputs=[a])


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((ADD, 1), {}, "geometry: must be given with a PTX text"),
        ((ADD, 1), {"geometry": ONE_WARP}, "kernel takes 2 arguments, got 1"),
        ((ADD, 1, "x"), {"geometry": ONE_WARP}, "argument 1 is a str: must be an array, a number or bytes"),
        ((ADD, PerRank(1, 2), 3), {"geometry": ONE_WARP}, "argument 0: PerRank of 2 values, must be 1"),
        ((ADD, 1, 2), {"geometry": ONE_WARP, "entry": "other"}, "no entry function other"),
        ((ADD, 1, 2), {"geometry": ONE_WARP, "ranks": 0}, "ranks = 0: must be an integer of 1 or more"),
        ((ADD, 1, 2), {"geometry": ONE_WARP, "outputs": [np.zeros(4)]}, r"outputs\[0\]: must be an argument or one of buffers"),
        ((7,), {}, "function_or_ptx is a int: must be a @cute.jit function or a PTX text"),
        ((dsl_kernels.scale,), {"geometry": ONE_WARP}, "geometry and entry: must be given with a PTX text"),
        ((dsl_kernels.scale,), {"arch": "sm_75"}, "arch = 'sm_75': must be one of sm_80"),
        ((ADD, 1, 2), {"geometry": (1, 32)}, "geometry: must be given with a PTX text"),
        ((ADD, 1, 2), {"geometry": Geometry(1, 32)}, "grid = 1: must be three integers"),
        ((ADD, 1, 2), {"geometry": ONE_WARP, "ranks": 10**7}, "ranks = 10000000: must be at most 1024"),
        ((ADD, 1, 2), {"geometry": ONE_WARP, "arch": None}, "arch = None: must be one of sm_80"),
        ((ADD, 1, 2), {"geometry": ONE_WARP, "seed": "a"}, "seed = 'a': must be an integer"),
        ((ADD, 1, 2), {"geometry": ONE_WARP, "max_delay": -1}, "max_delay = -1: must be an integer of 0 or more"),
        ((ADD, 1, 2), {"geometry": ONE_WARP, "resident": 0}, "resident = 0: must be an integer of 1 or more"),
        ((ADD, 1, 2), {"geometry": ONE_WARP, "most_instructions": 0.5}, "most_instructions = 0.5: must be an integer of 1 or more"),
        ((ADD, 1, 2), {"geometry": ONE_WARP, "num_sms": 0}, "num_sms = 0: must be an integer of 1 or more"),
        ((ADD, 1, 3.5), {"geometry": ONE_WARP}, r"argument 1 = 3.5: must be a number that fits the 4 bytes of .u32 n"),
        (
            (ADD, 1, (1 << 80) + 7),
            {"geometry": ONE_WARP},
            r"argument 1 = 1208925819614629174706183: must be a number that fits the 4 bytes",
        ),
        ((ADD, 1, -(1 << 31) - 1), {"geometry": ONE_WARP}, r"argument 1 = -2147483649: must be a number that fits the 4 bytes"),
    ],
)
def test_bad_arguments_are_named(arguments, options, text):
    with pytest.raises(SimError, match=text):
        run(*arguments, **options)


@pytest.mark.parametrize(
    ("geometry", "text"),
    [
        (Geometry((0, 1, 1), (32, 1, 1)), r"grid = \(0, 1, 1\): must be three integers from 1 to 2147483647, 65535, 65535"),
        (Geometry((-1, 1, 1), (32, 1, 1)), r"grid = \(-1, 1, 1\): must be three integers"),
        (Geometry((1, 65536, 1), (32, 1, 1)), r"grid = \(1, 65536, 1\): must be three integers"),
        (Geometry((1 << 30, 1, 1), (32, 1, 1)), "grid = .* must be at most 1048576 in all"),
        (Geometry((1, 1, 1), (0, 1, 1)), r"block = \(0, 1, 1\): must be three integers from 1 to 1024, 1024, 64"),
        (Geometry((1, 1, 1), (2048, 1, 1)), r"block = \(2048, 1, 1\): must be three integers"),
        (Geometry((1, 1, 1), (1024, 2, 1)), r"block = \(1024, 2, 1\): must be at most 1024 in all"),
        (Geometry((1, 1, 1), (32, 1, 65)), r"block = \(32, 1, 65\): must be three integers"),
        (Geometry((1, 1, 1), (32,)), r"block = \(32,\): must be three integers"),
        (Geometry((1.0, 1, 1), (32, 1, 1)), r"grid = \(1.0, 1, 1\): must be three integers"),
        (Geometry((32, 1, 1), (32, 1, 1), (32, 1, 1)), r"cluster = \(32, 1, 1\): must be three integers"),
        (Geometry((1, 1, 1), (32, 1, 1), dynamic_smem=-1), "dynamic_smem = -1: must be bytes, 0 or more"),
    ],
)
def test_a_launch_that_a_gpu_refuses_is_refused(geometry, text):
    with pytest.raises(SimError, match=text):
        run(ADD, np.zeros(32, np.int32), 5, geometry=geometry)


def test_a_kernel_without_an_end_is_stopped():
    endless = module("LOOP: add.u32 %r1, %r1, 1; mov.u32 %r1, 0; bra LOOP;", [])
    with pytest.raises(SimError, match=r"warp instructions and no end: [\s\S]*warp 0: PTX line \d+"):
        run(endless, geometry=ONE_WARP, most_instructions=10_000)


def test_a_register_that_nothing_writes_is_named():
    clean, unwritten = (run(module(f"mov.u32 %r2, 1; add.u32 %r1, {one}, 1;", []), geometry=ONE_WARP) for one in ("%r2", "%r3"))
    assert not clean.warnings
    assert [text.partition(": ")[2] for text in unwritten.warnings] == ["%r3 is read, and nothing writes it"]


def test_an_error_in_a_launch_is_the_simulators():
    with pytest.raises(SimError, match=r"PTX line \d+: .*vadd"):
        run(dsl_kernels.video, np.zeros(32, np.int32))


def test_check_schedules():
    a = np.arange(64, dtype=np.float32)
    check_schedules(dsl_kernels.reverse, a, True, seeds=(0, 1))
    assert (a == np.arange(64)[::-1]).all()
    with pytest.raises(AssertionError, match=r"race at a@rank0[\s\S]*dsl_kernels\.py"):
        check_schedules(dsl_kernels.reverse, a, False)
    order = np.zeros(8, np.int32)
    with pytest.raises(AssertionError, match="array 1 depends on the schedule"):
        check_schedules(dsl_kernels.arrivals, np.zeros(1, np.int32), order, seeds=range(4))
    with pytest.raises(ValueError, match="seeds"):
        check_schedules(dsl_kernels.reverse, a, True, seeds=())
