"""Helpers that several instruction families share."""

from __future__ import annotations

import numpy as np

from ..cta import Cta, Warp
from ..errors import SimError
from ..interfaces import Origin
from ..lanes import uniform
from ..memory import LOCAL_BASE, PARAM_BASE, SHARED_BASE, SMEM_BYTES, WINDOW_MASK, WINDOW_SHIFT, Bytes
from ..report import describe_line
from ..sync import SCOPES

_SPACES = ("global", "param", "local", "const")


def line_of(w: Warp) -> str:
    """The PTX line that a warp is at, for warnings."""
    return describe_line(w.line, w.world.kernels.of(w.kernel), "")


def origin(w: Warp) -> Origin:
    """Names the instruction that posts an asynchronous action."""
    line = w.line
    return lambda: f"{w} {describe_line(line, w.world.kernels.of(w.kernel), '')}"


def state_space(parts: tuple[str, ...]) -> str:
    """The state space in an opcode: shared (both windows), global, param, local, const, or generic."""
    for part in parts:
        if part.startswith("shared"):
            return "shared"
        if part in _SPACES:
            return part
    return "generic"


def semantics(parts: tuple[str, ...], default: str) -> str:
    """weak, relaxed, acquire, release or acq_rel; volatile counts as relaxed (PTX ISA, "Memory Consistency Model")."""
    for part in parts:
        if part in ("weak", "relaxed", "acquire", "release", "acq_rel"):
            return part
        if part in ("volatile", "mmio"):
            return "relaxed"
    return default


def scope(parts: tuple[str, ...], default: str) -> int:
    """The scope qualifier as a number, see `sync.SCOPES`. `volatile` has system scope."""
    for part in parts:
        if part in SCOPES:
            return SCOPES[part]
    return SCOPES["sys"] if "volatile" in parts or "mmio" in parts else SCOPES[default]


def by_address(lanes: list[int], addresses: np.ndarray) -> list[tuple[int, list[int]]]:
    """Lanes grouped by what they address."""
    if len(lanes) == 1 or uniform(addresses):
        return [(int(addresses[lanes[0]]), lanes)]
    groups: dict[int, list[int]] = {}
    for lane in lanes:
        groups.setdefault(int(addresses[lane]), []).append(lane)
    return list(groups.items())


def shared_target(w: Warp, address: int) -> tuple[Cta, int]:
    """A shared or generic address to its CTA and byte offset (reserved bytes included)."""
    address = int(address)
    if SHARED_BASE <= address < PARAM_BASE:
        address -= SHARED_BASE
    rank, offset = address >> WINDOW_SHIFT, address & WINDOW_MASK
    ctas = w.cta.cluster.ctas
    if address < 0 or rank >= len(ctas):
        raise SimError(f"shared address {address:#x}: no such CTA in a cluster of {len(ctas)}")
    if offset >= SMEM_BYTES:
        raise SimError(f"shared address {address:#x} out of range")
    return ctas[rank], offset


def generic_bytes(w: Warp, address: int, size: int) -> Bytes:
    """Bytes behind a generic address: a parameter, shared or global memory."""
    address = int(address)
    if PARAM_BASE <= address < LOCAL_BASE:
        offset = address - PARAM_BASE
        if offset + size > len(w.cta.parameters.data):
            raise SimError("parameter access out of bounds")
        return w.cta.parameters.data[offset : offset + size]
    if SHARED_BASE <= address < PARAM_BASE:
        cta, offset = shared_target(w, address)
        return cta.shared.read(offset, size)
    return w.world.memory.read(address, size)
