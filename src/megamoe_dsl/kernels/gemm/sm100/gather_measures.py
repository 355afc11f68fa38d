"""Measures of the SM100 kernel."""

from __future__ import annotations

from ....blocks.gemm.gather.problem import GatherGemmProblem
from ....sass.measurer import Measure, Measurer
from .measures import measure_epilogue, measure_mma, measure_weight_loader


def measure_gather(find: Measurer) -> list[Measure]:
    """Of a warp that gathers: its lanes issue a gather4 one after another, in a loop of their own."""
    if not find.config.problem.gathers:
        return find.tiled_loop("token_gather", "token gatherer", "gather.", "UTMALDG", 1)
    rows, _ = find.k_loop("gather.", "UTMALDG", 1)
    block = find.around(rows)
    return [
        find.measure("token_gather_rows", "token gatherer", "4 rows", rows, 1),
        find.measure("token_gather_k_block", "token gatherer", "K block", block, 1, [rows]),
        find.measure("token_gather_tile", "token gatherer", "tile", find.around(block), 1, [block]),
    ]


def measure_pair_gather(find: Measurer) -> list[Measure]:
    """Of all roles that go through the stages; a K block is a stage.  Raises `InspectionError` when one is missing."""
    return [
        *measure_mma(find),
        *measure_gather(find),
        *measure_weight_loader(find),
        *measure_epilogue(find, function_of_gate_up(find.config.problem)),
    ]


def function_of_gate_up(problem: GatherGemmProblem) -> str:
    """Which reads the sums of gate and up; empty without."""
    if not problem.gate_up:
        return ""
    if problem.hidden.factor:
        return "gate_up_nvfp4."
    return "epilogue.finish_gate_up" if problem.hidden.scale else "gate_up_bf16."
