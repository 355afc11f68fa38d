"""Loads, stores, atomics and fences (PTX ISA, memory consistency model), matrices of a warp (SM100_FACTS), and copies into shared
memory that each thread asks for on its own (PTX ISA, cp.async).

Such copies write as threads do: who reads them through TMA or the tensor core needs a proxy fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from cutlass import Float32, Int32, Int64, Uint32

from .cast import unpack_bf16
from .ptx import emit, emit_to, emit_to_many

# Instructions whose operands are the arguments in their order: loads take an address, stores an address and values; vectors are aligned.
# --- shared
load_shared_u32 = partial(emit_to, Int32, "ld.shared.b32 {}, [{}];")
load_shared_u8 = partial(emit_to, Int32, "ld.shared.u8 {}, [{}];")
load_shared_u16 = partial(emit_to, Int32, "{{\n\t.reg .b16 h;\n\tld.shared.u16 h, [{1}];\n\tcvt.u32.u16 {0}, h;\n\t}}")
load_shared_f32 = partial(emit_to, Float32, "ld.shared.f32 {}, [{}];")
load_shared_f32x2 = partial(emit_to_many, [Float32] * 2, "ld.shared.v2.f32 {{{}, {}}}, [{}];")
load_shared_v2 = partial(emit_to_many, [Uint32] * 2, "ld.shared.v2.b32 {{{}, {}}}, [{}];")
load_shared_v4 = partial(emit_to_many, [Uint32] * 4, "ld.shared.v4.b32 {{{}, {}, {}, {}}}, [{}];")
store_shared_u32 = partial(emit, "st.shared.b32 [{}], {};")
store_shared_u16 = partial(emit, "{{\n\t.reg .b16 h;\n\tcvt.u16.u32 h, {1};\n\tst.shared.b16 [{0}], h;\n\t}}")
store_shared_f32 = partial(emit, "st.shared.f32 [{}], {};")
store_shared_f32x2 = partial(emit, "st.shared.v2.f32 [{}], {{{}, {}}};")
store_shared_v2 = partial(emit, "st.shared.v2.b32 [{}], {{{}, {}}};")
store_shared_v4 = partial(emit, "st.shared.v4.b32 [{}], {{{}, {}, {}, {}}};")  # (address, words)
atomic_add_shared = partial(emit_to, Int32, "atom.relaxed.cta.shared::cta.add.u32 {}, [{}], {};")
reduce_add_shared = partial(emit, "red.relaxed.cta.shared::cta.add.u32 [{}], {};")
"""`atomic_add_shared` without the previous value."""


# --- global, weak
load_u8 = partial(emit_to, Int32, "ld.global.u8 {}, [{}];")
load_u32 = partial(emit_to, Int32, "ld.global.b32 {}, [{}];")
load_relaxed_u32 = partial(emit_to, Int32, "ld.relaxed.gpu.global.b32 {}, [{}];")
"""4 bytes from global memory, past what an SM keeps of an earlier launch: a strong load of GPU scope."""
load_relaxed_v4 = partial(emit_to_many, [Uint32] * 4, "ld.relaxed.gpu.global.v4.b32 {{{}, {}, {}, {}}}, [{}];")
"""The same of four words, 16-byte aligned, each of which is a load by itself."""
store_relaxed_f32 = partial(emit, "st.relaxed.gpu.global.f32 [{}], {};")
store_relaxed_u32 = partial(emit, "st.relaxed.gpu.global.b32 [{}], {};")
load_u64 = partial(emit_to, Int64, "ld.global.b64 {}, [{}];")
load_f32 = partial(emit_to, Float32, "ld.global.f32 {}, [{}];")
load_f32x2 = partial(emit_to_many, [Float32] * 2, "ld.global.v2.f32 {{{}, {}}}, [{}];")
load_v4 = partial(emit_to_many, [Uint32] * 4, "ld.global.v4.b32 {{{}, {}, {}, {}}}, [{}];")
load_once_v4 = partial(emit_to_many, [Uint32] * 4, "ld.global.L1::no_allocate.v4.b32 {{{}, {}, {}, {}}}, [{}];")
"""Four words, 16-byte aligned, from global memory, that L1 is not to keep."""
load_constant_u64 = partial(emit_to, Int64, "ld.global.nc.b64 {}, [{}];")
"""For data that nobody writes while the kernel runs."""
load_constant_v4 = partial(emit_to_many, [Uint32] * 4, "ld.global.nc.L1::no_allocate.v4.b32 {{{}, {}, {}, {}}}, [{}];")
"""16 aligned bytes that nobody writes while the kernel runs, and nobody reads twice."""
store_u8 = partial(emit, "st.global.b8 [{}], {};")
store_u16 = partial(emit, "st.global.b16 [{}], {};")
store_u32 = partial(emit, "st.global.b32 [{}], {};")
store_u64 = partial(emit, "st.global.b64 [{}], {};")
store_v2 = partial(emit, "st.global.v2.b32 [{}], {{{}, {}}};")
store_f32 = partial(emit, "st.global.f32 [{}], {};")
store_v2_f32 = partial(emit, "st.global.v2.f32 [{}], {{{}, {}}};")
store_v4 = partial(emit, "st.global.v4.b32 [{}], {{{}, {}, {}, {}}};")  # (address, words)


# --- global, strong
def _load_acquire(result: Any, address: Any, scope: str) -> Any:
    return emit_to(result, f"ld.acquire.{scope}.global.b{result.width} {{}}, [{{}}];", address)


load_acquire_u32 = partial(_load_acquire, Int32)
"""(address, scope): 4 bytes, as an acquire: what their writer had released is visible to all that follows.  The scope is gpu or sys."""
load_acquire_u64 = partial(_load_acquire, Int64)  # the same of 8 bytes


def store_release_u32(address: Any, value: Any, scope: str) -> None:
    """4 bytes, as a release: who sees them by an acquire sees what this thread wrote and saw before.  `scope` is gpu or sys."""
    emit(f"st.release.{scope}.global.b32 [{{}}], {{}};", address, value)


atomic_add_u32 = partial(emit_to, Int32, "atom.relaxed.gpu.global.add.u32 {}, [{}], {};")
"""Previous value; relaxed, GPU scope."""


def _reduce(operation: str, address: Any, value: Any, sem: str, scope: str) -> None:
    emit(f"red.{sem}.{scope}.global.{operation} [{{}}], {{}};", address, value)


reduce_add_u32 = partial(_reduce, "add.u32")
"""(address, value, sem, scope): adds to 4 bytes, without the previous value; sem is relaxed or release, the scope gpu or sys."""
reduce_add_u64, reduce_or_u64 = partial(_reduce, "add.u64"), partial(_reduce, "or.b64")  # the same of 8 bytes


fence_sys = partial(emit, "fence.acq_rel.sys;")
"""Whoever, on any GPU, sees what this thread writes after the fence, also sees what it wrote and saw before."""


# --- fences between the generic and the asynchronous proxy
fence_async_shared = partial(emit, "fence.proxy.async.shared::cta;")
"""This thread's accesses to shared memory come before TMA's and the tensor core's that follow."""
fence_async_global = partial(emit, "fence.proxy.async.global;")
"""This thread's accesses to global memory come before TMA's that follow."""


VECTOR = 16  # bytes
WORD = 4


copy_vector = partial(emit, "cp.async.cg.shared.global [{}], [{}], 16, {};")
"""(destination, source, num_bytes): 16 bytes, aligned, past the L1 cache; beyond `num_bytes` they become zero and are not read."""


def copy_word(destination: Any, source: Any, num_bytes: Any, words: int = 1) -> None:
    """4 bytes, or 2 or 4 words at once, aligned, through L1, where their neighbors stay; all of them or, with `num_bytes` of 0, zero."""
    emit("cp.async.ca.shared.global [{}], [{}], {}, {};", destination, source, WORD * words, num_bytes)


commit_copies = partial(emit, "cp.async.commit_group;")
"""This thread's copies since the last group become one."""
wait_copies = partial(emit, "cp.async.wait_group {};")
"""Waits until no more than so many of this thread's latest groups of copies are under way."""
arrive_when_copied = partial(emit, "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{}];")
"""This thread arrives at an mbarrier once its copies so far are done; its arrival is one of those that the barrier counts."""
load_four = partial(emit_to_many, [Uint32] * 4, "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{}, {}, {}, {}}}, [{}];")
"""Four tiles of 8 rows of 16 bytes: lane 8 k + r gives the address of row r of tile k.  Returns of each tile word `lane % 4` of row
    `lane / 4`."""


def _store_matrices(form: str, address: Any, words: Sequence[Any]) -> None:
    """stmatrix of 1, 2 or 4 tiles, whose number `form` takes: lane 8 k + r gives the address of row, or column, r of tile k."""
    names = ", ".join("{}" for _ in words)
    emit(f"stmatrix.sync.aligned.{form.format(len(words))} [{{}}], {{{{{names}}}}};", address, *words)


store_transposed_b8 = partial(_store_matrices, "m16n8.x{}.trans.shared.b8")
"""(address, words): tiles of 16 rows x 8 columns of bytes, column by column."""
store_b16 = partial(_store_matrices, "m8n8.x{}.shared.b16")
"""(address, words): tiles of 8 x 8 halves, row by row."""
store_transposed_b16 = partial(_store_matrices, "m8n8.x{}.trans.shared.b16")
"""(address, words): tiles of 8 x 8 halves, column by column."""


def load_float(address: Any, bf16: bool) -> Any:
    """A number from global memory, as FP32."""
    if not bf16:
        return load_f32(address)
    half: Any = emit_to(Uint32, "{{\n\t.reg .b16 h;\n\tld.global.b16 h, [{1}];\n\tmov.b32 {0}, {{h, h}};\n\t}}", address)
    return unpack_bf16(half)[0]


def load_floats(address: Any, bf16: bool) -> tuple[Any, ...]:
    """Two numbers that follow one another, aligned to both, as FP32."""
    return unpack_bf16(Uint32(load_u32(address))) if bf16 else load_f32x2(address)
