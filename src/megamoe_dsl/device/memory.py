"""Loads, stores, atomics and fences (PTX ISA, memory consistency model)."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32, Int64, Uint32

from .ptx import emit, emit_to, emit_to_many


# --- shared
def load_shared_u32(address: Any) -> Any:
    return emit_to(Int32, "ld.shared.b32 {}, [{}];", address)


def load_shared_f32(address: Any) -> Any:
    return emit_to(Float32, "ld.shared.f32 {}, [{}];", address)


def load_shared_f32x2(address: Any) -> tuple[Any, ...]:
    return emit_to_many([Float32] * 2, "ld.shared.v2.f32 {{{}, {}}}, [{}];", address)


def load_shared_v4(address: Any) -> tuple[Any, ...]:
    return emit_to_many([Uint32] * 4, "ld.shared.v4.b32 {{{}, {}, {}, {}}}, [{}];", address)


def store_shared_u32(address: Any, value: Any) -> None:
    emit("st.shared.b32 [{}], {};", address, value)


def store_shared_f32(address: Any, value: Any) -> None:
    emit("st.shared.f32 [{}], {};", address, value)


def store_shared_v2(address: Any, a: Any, b: Any) -> None:
    emit("st.shared.v2.b32 [{}], {{{}, {}}};", address, a, b)


def store_shared_v4(address: Any, values: tuple[Any, ...]) -> None:
    emit("st.shared.v4.b32 [{}], {{{}, {}, {}, {}}};", address, *values)


def atomic_add_shared(address: Any, value: Any) -> Any:
    """Previous value."""
    return emit_to(Int32, "atom.relaxed.cta.shared::cta.add.u32 {}, [{}], {};", address, value)


def reduce_add_shared(address: Any, value: Any) -> None:
    emit("red.relaxed.cta.shared::cta.add.u32 [{}], {};", address, value)


# --- global, weak
def load_u32(address: Any) -> Any:
    return emit_to(Int32, "ld.global.b32 {}, [{}];", address)


def load_u64(address: Any) -> Any:
    return emit_to(Int64, "ld.global.b64 {}, [{}];", address)


def load_f32(address: Any) -> Any:
    return emit_to(Float32, "ld.global.f32 {}, [{}];", address)


def load_f32x2(address: Any) -> tuple[Any, ...]:
    return emit_to_many([Float32] * 2, "ld.global.v2.f32 {{{}, {}}}, [{}];", address)


def load_constant_u64(address: Any) -> Any:
    """For data that nobody writes while the kernel runs."""
    return emit_to(Int64, "ld.global.nc.b64 {}, [{}];", address)


def load_constant_v4(address: Any) -> tuple[Any, ...]:
    """16 aligned bytes that nobody writes while the kernel runs, and nobody reads twice."""
    template = "ld.global.nc.L1::no_allocate.v4.b32 {{{}, {}, {}, {}}}, [{}];"
    return emit_to_many([Uint32] * 4, template, address)


def store_u8(address: Any, value: Any) -> None:
    emit("st.global.b8 [{}], {};", address, value)


def store_u32(address: Any, value: Any) -> None:
    emit("st.global.b32 [{}], {};", address, value)


def store_u64(address: Any, value: Any) -> None:
    emit("st.global.b64 [{}], {};", address, value)


def store_v2(address: Any, a: Any, b: Any) -> None:
    emit("st.global.v2.b32 [{}], {{{}, {}}};", address, a, b)


def store_f32(address: Any, value: Any) -> None:
    emit("st.global.f32 [{}], {};", address, value)


def store_v4(address: Any, values: tuple[Any, ...]) -> None:
    emit("st.global.v4.b32 [{}], {{{}, {}, {}, {}}};", address, *values)


# --- global, strong
def load_acquire_u32(address: Any, scope: str) -> Any:
    return emit_to(Int32, f"ld.acquire.{scope}.global.b32 {{}}, [{{}}];", address)


def load_acquire_u64(address: Any, scope: str) -> Any:
    return emit_to(Int64, f"ld.acquire.{scope}.global.b64 {{}}, [{{}}];", address)


def atomic_add_u32(address: Any, value: Any) -> Any:
    """Previous value; relaxed, GPU scope."""
    return emit_to(Int32, "atom.relaxed.gpu.global.add.u32 {}, [{}], {};", address, value)


def reduce_add_u64_sys(address: Any, value: Any) -> None:
    emit("red.relaxed.sys.global.add.u64 [{}], {};", address, value)


def reduce_add_u32(address: Any, value: Any, sem: str, scope: str) -> None:
    emit(f"red.{sem}.{scope}.global.add.u32 [{{}}], {{}};", address, value)


def reduce_or_u64(address: Any, value: Any, sem: str, scope: str) -> None:
    emit(f"red.{sem}.{scope}.global.or.b64 [{{}}], {{}};", address, value)


def fence_sys() -> None:
    """What this thread did and saw before comes first for whoever, on any GPU, sees what it does after."""
    emit("fence.acq_rel.sys;")


# --- fences between the generic and the asynchronous proxy
def fence_async_shared() -> None:
    emit("fence.proxy.async.shared::cta;")


def fence_async_global() -> None:
    emit("fence.proxy.async.global;")
