"""A kernel of one `wgmma.m64n8` with chosen operands, as PTX for any float format, and numbers that show how it aligns and cuts."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray

from megamoe_dsl.sim.umma import decode_operand

ROWS, COLUMNS, K_BYTES, THREADS = 64, 8, 32, 128
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
"""Formats by their names in PTX."""
_TF32_BITS = 0xFFFFE000
Bytes = NDArray[np.uint8]

PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry one_wgmma(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d, .param .u32 accumulate)
{{
    .reg .pred %p<3>;
    .reg .b32 %r<14>;
    .reg .f32 %f<5>;
    .reg .b64 %d<12>;
    .shared .align 128 .b8 rows[2048];
    .shared .align 128 .b8 columns[256];
    ld.param.u64 %d1, [a];
    ld.param.u64 %d2, [b];
    ld.param.u64 %d3, [c];
    ld.param.u64 %d4, [d];
    ld.param.u32 %r1, [accumulate];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %tid.x;
    mul.wide.u32 %d5, %r2, 2048;
    mul.wide.u32 %d6, %r2, 256;
    mul.wide.u32 %d7, %r3, 16;
    add.u64 %d5, %d5, %d7;
    add.u64 %d6, %d6, %d7;
    add.u64 %d1, %d1, %d5;
    add.u64 %d2, %d2, %d6;
    add.u64 %d3, %d3, %d5;
    add.u64 %d4, %d4, %d5;
    mov.u32 %r4, rows;
    mov.u32 %r5, columns;
    shl.b32 %r6, %r3, 4;
    add.u32 %r7, %r4, %r6;
    add.u32 %r8, %r5, %r6;
    ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%d1];
    st.shared.v4.b32 [%r7], {{%r10, %r11, %r12, %r13}};
    setp.ge.u32 %p1, %r3, 16;
    @%p1 bra stored;
    ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%d2];
    st.shared.v4.b32 [%r8], {{%r10, %r11, %r12, %r13}};
stored:
    ld.global.v4.f32 {{%f1, %f2, %f3, %f4}}, [%d3];
    fence.proxy.async.shared::cta;
    bar.sync 0;
    cvt.u64.u32 %d8, %r4;
    cvt.u64.u32 %d9, %r5;
    shr.u64 %d8, %d8, 4;
    shr.u64 %d9, %d9, 4;
    or.b64 %d8, %d8, {strides};
    or.b64 %d9, %d9, {strides};
    setp.ne.u32 %p2, %r1, 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k{k}.f32.{name}.{name} {{%f1, %f2, %f3, %f4}}, %d8, %d9, %p2, 1, 1{transposed};
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    st.global.v4.f32 [%d4], {{%f1, %f2, %f3, %f4}};
    ret;
}}
"""
"""A CTA for each case: 64 rows of A and 8 of B without a swizzle, C and D as registers hold them, 16 bytes of a thread."""
_STRIDES = (128 >> 4) << 16 | (256 >> 4) << 32  # from 16 bytes of K to the next, and from 8 rows to the next

_THREAD = np.arange(THREADS)
_ROW = (16 * (_THREAD // 32) + _THREAD % 32 // 4)[:, None] + np.array([0, 0, 8, 8])
_COLUMN = (_THREAD % 4 * 2)[:, None] + np.array([0, 1, 0, 1])


def k_of(name: str) -> int:
    """Elements of 32 bytes."""
    return K_BYTES // TYPES[name].itemsize


def ptx(name: str) -> str:
    """The kernel of a format."""
    return PTX.format(name=name, k=k_of(name), strides=_STRIDES, transposed=", 0, 0" if TYPES[name].itemsize == 2 else "")


def encode(name: str, values: NDArray[np.float64]) -> Bytes:
    """Bytes of the nearest finite numbers that the format has, (cases, rows, 32)."""
    most = torch.finfo(TYPES[name]).max
    codes = torch.tensor(values).clamp(-most, most).to(torch.float32).to(TYPES[name]).view(torch.uint8).numpy()
    return (codes.view(np.uint32) & np.uint32(_TF32_BITS)).view(np.uint8) if name == "tf32" else codes


def decode(name: str, codes: Bytes) -> NDArray[np.float64]:
    """Values (cases, rows, K) of bytes (cases, rows, 32)."""
    return decode_operand(codes.reshape(-1, K_BYTES), name).reshape(*codes.shape[:2], -1)


def in_shared_memory(codes: Bytes) -> Bytes:
    """Bytes (cases, rows, 32) in the order of matrices of 8 rows of 16 bytes."""
    cases, rows, _ = codes.shape
    return np.ascontiguousarray(codes.reshape(cases, rows // 8, 8, 2, 16).transpose(0, 1, 3, 2, 4))


def in_registers(c: NDArray[np.float32]) -> NDArray[np.float32]:
    """(cases, 64, 8) as threads hold it."""
    return np.ascontiguousarray(c[:, _ROW, _COLUMN])


def from_registers(d: NDArray[np.float32]) -> NDArray[np.float32]:
    """The inverse."""
    matrices = np.empty((len(d), ROWS, COLUMNS), np.float32)
    matrices[:, _ROW, _COLUMN] = d
    return matrices


def draw(name: str, cases: int, seed: int) -> tuple[Bytes, Bytes, NDArray[np.float32]]:
    """A, B and C of so many cases of each kind: normal numbers; exponents far apart; sums that cancel; few that are not zero; subnormal
    operands and accumulators."""
    rng, k = np.random.default_rng(seed), k_of(name)
    shapes = (cases, ROWS, k), (cases, COLUMNS, k), (cases, ROWS, COLUMNS)

    def spread(deviation: float) -> list[NDArray[np.float64]]:
        return [
            rng.uniform(1, 2, shape) * rng.choice([-1, 1], shape) * np.exp2(np.round(deviation * rng.standard_normal(shape)))
            for shape in shapes
        ]

    normal, wide, cancelling, sparse, low = [rng.standard_normal(shape) for shape in shapes], spread(3), spread(2), spread(3), spread(1)
    cancelling[0][..., k // 2 :], cancelling[1][..., k // 2 :] = -cancelling[0][..., : k // 2], cancelling[1][..., : k // 2]
    sparse = [values * (rng.random(values.shape) < 0.4) for values in sparse]
    least = torch.finfo(TYPES[name]).tiny
    low = [low[0] * least / 2, low[1], low[2] * 2.0**-127]
    drawn = [np.concatenate(values) for values in zip(normal, wide, cancelling, sparse, low, strict=True)]
    return encode(name, drawn[0]), encode(name, drawn[1]), drawn[2].astype(np.float32)


def launch(name: str, a: Bytes, b: Bytes, c: NDArray[np.float32], accumulate: bool) -> NDArray[np.float32]:
    """D (cases, 64, 8) of a GPU, which compiles the PTX."""
    from cuda.bindings import driver

    from megamoe_dsl.runtime.cuda_kernel import call

    on_gpu = [torch.from_numpy(values).cuda() for values in (in_shared_memory(a), in_shared_memory(b), in_registers(c))]
    d = torch.empty_like(on_gpu[2])
    module = call(driver.cuModuleLoadData, ptx(name).encode())
    function = call(driver.cuModuleGetFunction, module, b"one_wgmma")
    values = (*(one.data_ptr() for one in (*on_gpu, d)), int(accumulate))
    call(driver.cuLaunchKernel, function, len(a), 1, 1, THREADS, 1, 1, 0, 0, (values, (ctypes.c_void_p,) * 4 + (ctypes.c_uint32,)), 0)
    torch.cuda.synchronize()
    return from_registers(d.cpu().numpy())
