"""`run`: a kernel of anybody's on the simulator, from the arguments that it would be given on a GPU."""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SimError, require_integer
from ..geometry import Geometry, Launch
from ..interfaces import STRICT, Assumptions
from ..parser import Parameter
from ..program import load
from ..report import Report
from ..simulator import Simulator
from .arrays import ByteSpan, DeviceArray, is_array, of_rank, visible_memory
from .module import SimulatedDevice, launches_on

MOST_RANKS = 1024
MOST_INSTRUCTIONS = 100_000_000  # Of all warps in a run, unless its caller says otherwise: half an hour.


def run(
    function_or_ptx: Callable[..., Any] | str,
    *arguments: Any,
    ranks: int = 1,
    seed: int = 0,
    races: bool = True,
    arch: str = "sm_100a",
    num_sms: int = 4,
    geometry: Geometry | None = None,
    entry: str | None = None,
    buffers: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    max_delay: int = 3,
    resident: int | None = None,
    assumptions: Assumptions = STRICT,
    most_instructions: int | None = MOST_INSTRUCTIONS,
) -> Report:
    """Runs a host function of CuTe DSL, or one kernel of a PTX text, on simulated GPUs. Arrays are changed in place.

    A host function (`@cute.jit`) is compiled for `arch` and called once for every rank; all kernels that it launches then run, those
    of one rank one after the other. Numpy arrays and CPU torch tensors among its arguments become tensors of the DSL in global memory
    with static layouts; tensors of the DSL (of `from_dlpack(DeviceArray(x))`, say with a dynamic layout), pointers, numbers and
    compile-time arguments are passed as they are. Tensor maps are those that the host function makes of them.

    A PTX text runs its entry `entry`, by default the first, in the shape of `geometry`. Its arguments follow the entry's parameters:
    arrays pass their address, numbers as many bytes as the parameter has, bytes (a `TensorMap.encode()`) as they are.

    ranks          simulated GPUs that run at once; arguments that differ between them are `PerRank(...)`
    seed           fixes the random schedule
    races          turns the race detector on
    arch, num_sms  what a host function is compiled for, and the SMs that it is told of
    buffers        arrays that kernels reach through pointers only; kernels may touch these and the arguments, and nothing else
    outputs        arrays among both that hold nothing before the run, so that reading what was not written is an error

    `max_delay`, `resident`, `assumptions` and `most_instructions` are those of `Simulator`.

    The report has instructions, findings grouped by kind, place and lines, and warnings. Findings name lines of the host function's folder.
    Raises SimError for arguments that do not fit, or a kernel that does what PTX forbids, and `Deadlock` when nothing can progress.
    """
    device = SimulatedDevice(arch, num_sms, lambda launch: None)
    require_integer("num_sms", num_sms, 1)
    require_integer("ranks", ranks, 1)
    if ranks > MOST_RANKS:
        raise SimError(f"ranks = {ranks}: must be at most {MOST_RANKS}")
    by_rank = [[of_rank(value, rank, ranks, place) for place, value in enumerate(arguments)] for rank in range(ranks)]
    if isinstance(function_or_ptx, str):
        names = [f"argument {place}" for place in range(len(arguments))]
        launches = _ptx_launches(function_or_ptx, entry, geometry, by_rank)
    else:
        if geometry is not None or entry is not None:
            raise SimError("geometry and entry: must be given with a PTX text, a host function has its own")
        if not callable(function_or_ptx):
            raise SimError(f"function_or_ptx is a {type(function_or_ptx).__name__}: must be a @cute.jit function or a PTX text")
        known = list(inspect.signature(function_or_ptx).parameters)[: len(arguments)]
        names = [*known, *(f"argument {place}" for place in range(len(known), len(arguments)))]
        launches = _host_launches(function_or_ptx, device, by_rank)
    arrays = [(names[place], rank, value) for rank, values in enumerate(by_rank) for place, value in enumerate(values)]
    arrays += [(f"buffers[{place}]", 0, value) for place, value in enumerate(buffers)]
    memory = visible_memory(arrays, outputs)
    simulator = Simulator(
        None, memory, seed, races, max_delay, resident=resident, assumptions=assumptions, most_instructions=most_instructions
    )
    return simulator.run(launches)


def _ptx_launches(ptx: str, entry: str | None, geometry: Geometry | None, by_rank: list[list[Any]]) -> list[Launch]:
    if not isinstance(geometry, Geometry):
        raise SimError("geometry: must be given with a PTX text, as Geometry(grid=(x, y, z), block=(x, y, z))")
    program = load(ptx, entry)
    parameters = program.kernel.parameters
    if any(len(values) != len(parameters) for values in by_rank):
        raise SimError(f"{program.kernel.name} takes {len(parameters)} arguments, got {len(by_rank[0])}")
    return [
        Launch(
            **vars(geometry),
            args=tuple(_ptx_argument(value, one, place) for place, (value, one) in enumerate(zip(values, parameters, strict=True))),
            rank=rank,
            program=program,
        )
        for rank, values in enumerate(by_rank)
    ]


def _ptx_argument(value: Any, parameter: Parameter, place: int) -> int | bytes:
    size, kind = parameter.size, parameter.kind
    if isinstance(value, np.generic):
        return value.tobytes()
    if is_array(value):
        span = ByteSpan.of(value, f"argument {place}")
        return span.start if span else 0
    if isinstance(value, float) and size in (4, 8) and kind[0] not in "us":
        return struct.pack("<f" if size == 4 else "<d", value)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if not isinstance(value, int | float):
        raise SimError(f"argument {place} is a {type(value).__name__}: must be an array, a number or bytes")
    if isinstance(value, float) or not -(1 << 8 * size - 1) <= value < 1 << 8 * size:
        raise SimError(f"argument {place} = {value!r}: must be a number that fits the {size} bytes of .{kind} {parameter.name}")
    return value


def _host_launches(function: Callable[..., Any], device: SimulatedDevice, by_rank: list[list[Any]]) -> list[Launch]:
    import cutlass.cute as cute

    from ...device.location import attribute_lines
    from ...interrupts import held_interrupts

    launches: list[Launch] = []
    device.take = launches.append
    given = [[_device_tensor(value) for value in values] for values in by_rank]
    folder = Path(inspect.getsourcefile(inspect.unwrap(function)) or ".").resolve().parent
    with launches_on(device), attribute_lines(folder), held_interrupts():
        compiled = cute.compile(function, *given[0])
    traced = {one["argument_index"] for one in compiled.execution_args.get_constexpr_args()}
    for device.rank, values in enumerate(given):
        try:
            compiled(*(value for place, value in enumerate(values) if place not in traced))
        finally:
            if device.error is not None:
                raise device.error
    return launches


def _device_tensor(value: Any) -> Any:
    if not is_array(value) or isinstance(value, np.generic):
        return value
    from cutlass.cute.runtime import from_dlpack

    span = ByteSpan.of(value, "")
    aligned = span is not None and span.start % 16 == 0
    return from_dlpack(DeviceArray(value), assumed_align=16 if aligned else None)
