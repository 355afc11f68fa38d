"""Small hand-written kernels for the simulator's tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from megamoe_dsl.sim import GlobalMemory, Launch, Report, Simulator

REGISTERS = """
.reg .pred %p<20>; .reg .b16 %h<40>; .reg .b32 %r<60>; .reg .f32 %f<40>; .reg .b64 %rd<60>; .reg .f64 %d<20>; .reg .b8 %b<8>;
"""


def module(body: str, parameters: list[str], shared: str = "", declarations: str = "") -> str:
    """A PTX module with one kernel."""
    listed = ", ".join(parameters)
    return f"""
.version 8.8
.target sm_100a
.address_size 64
{shared}
.visible .entry kernel({listed})
{{
{REGISTERS}
{declarations}
{body}
ret;
}}
"""


def run(
    body: str,
    buffers: list[np.ndarray[Any, Any]],
    *,
    block: int = 32,
    grid: int = 1,
    cluster: int = 1,
    shared: str = "",
    declarations: str = "",
    dynamic_smem: int = 0,
    initialized: bool = True,
    seed: int = 0,
    race: bool = True,
    extra: tuple[int, ...] = (),
    **options: Any,
) -> Report:
    """Run a kernel whose 64-bit parameters a0, a1, ... point at `buffers`; `options` as Simulator.

    The parameters are loaded into %rd50, %rd51, ..., and tid.x into %r50.
    """
    memory = GlobalMemory()
    addresses = [memory.add(b, f"a{i}", initialized=initialized) for i, b in enumerate(buffers)]
    parameters = [f".param .u64 a{i}" for i in range(len(buffers) + len(extra))]
    loads = "".join(f"ld.param.b64 %rd{50 + i}, [a{i}];\n" for i in range(len(parameters)))
    text = module(loads + "mov.u32 %r50, %tid.x;\n" + body, parameters, shared, declarations)
    launch = Launch((grid, 1, 1), (block, 1, 1), (cluster, 1, 1), dynamic_smem, (*addresses, *extra))
    return Simulator(text, memory, seed=seed, race=race, **options).run([launch])


def lanes(instructions: str, *sources: np.ndarray[Any, Any], result: str, dtype: Any, block: int = 32) -> np.ndarray[Any, Any]:
    """Per thread: load one element of each source into register 1, 2, ... of its size's file, run, and return register `result`."""
    out = np.zeros(block, dtype)
    sources = tuple(np.ascontiguousarray(np.broadcast_to(s, block)) for s in sources)
    text = ""
    for i, s in enumerate((*sources, out)):
        text += f"mad.wide.u32 %rd{40 + i}, %r50, {s.itemsize}, %rd{50 + i};\n"
    for i, s in enumerate(sources, 1):
        kind = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}[s.itemsize]
        register = {1: "%h", 2: "%h", 4: "%r", 8: "%rd"}[s.itemsize]
        text += f"ld.global.{kind} {register}{i}, [%rd{39 + i}];\n"
    kind = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}[out.itemsize]
    text += instructions
    text += f"\nst.global.{kind} [%rd{40 + len(sources)}], {result};\n"
    run(text, [*sources, out], block=block)
    return out
