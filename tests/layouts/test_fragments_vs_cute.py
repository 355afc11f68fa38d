"""Our thread-value layouts against those of CuTe's own copy and MMA atoms, read while the DSL traces."""

import os

import pytest
from hardware_layouts import stmatrix_b8, stmatrix_b16, tmem_32x32b, wgmma_accumulator

from layout_algebra import composition, same_function
from megamoe_dsl.hardware.fragments import tmem_16x256b
from megamoe_dsl.layouts.layout import Layout

ROW_MAJOR_LANES = 32


@pytest.fixture(scope="module")
def read():
    """The layout that `choose(cute)` returns for an architecture."""
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
    import cutlass.cute as cute

    box = {}

    @cute.jit
    def host():
        layout = box["choose"](cute)
        box["result"] = Layout(layout.shape, layout.stride)

    def run(choose, arch="sm_100a"):
        box["choose"] = choose
        cute.compile(host, options=f"--gpu-arch={arch}")
        return box["result"]

    return run


@pytest.mark.parametrize("tiles", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_stmatrix_b16(read, tiles, transposed):
    from cutlass import BFloat16

    theirs = read(lambda cute: cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(transposed, tiles), BFloat16).layout_src_tv)
    assert same_function(theirs, stmatrix_b16(tiles, transposed=transposed))


@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_stmatrix_b8(read, tiles):
    from cutlass import Int8

    theirs = read(lambda cute: cute.make_copy_atom(cute.nvgpu.warp.StMatrix16x8x8bOp(True, tiles), Int8).layout_src_tv)
    assert same_function(theirs, stmatrix_b8(tiles))


def row_major(fragment, columns):
    """lane + 32 * column to lane * columns + column, which is how CuTe counts."""
    return composition(Layout((ROW_MAJOR_LANES, columns), (columns, 1)), fragment)


@pytest.mark.parametrize("repeats", [1, 2, 4, 8])
def test_tmem_loads(read, repeats):
    from cutlass import Float32

    def load(name):
        def choose(cute):
            ops = cute.nvgpu.tcgen05
            return cute.make_copy_atom(getattr(ops, name)(getattr(ops.Repetition, f"x{repeats}")), Float32).layout_dst_tv

        return read(choose)

    assert same_function(load("Ld16x256bOp"), row_major(tmem_16x256b(repeats), 8 * repeats))
    assert same_function(load("Ld32x32bOp"), row_major(tmem_32x32b(repeats), repeats))


@pytest.mark.parametrize("n", [8, 64, 128, 256])
def test_wgmma_accumulator(read, n):
    from cutlass import BFloat16, Float32

    def choose(cute):
        ops, major = cute.nvgpu.warpgroup, cute.nvgpu.OperandMajorMode.K
        op = ops.MmaF16BF16Op(BFloat16, Float32, (64, n, 16), ops.OperandSource.SMEM, major, major)
        return cute.make_tiled_mma(op).tv_layout_C

    assert same_function(read(choose, "sm_90a"), wgmma_accumulator(n))
