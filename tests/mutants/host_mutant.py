"""What mutants of the host's part of calls have in common: the tests nearest to them."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

ROW = "tests/runtime/test_calls_in_a_row.py::test_a_call_does_what_it_would_do_alone"
MOE = "tests/runtime/test_launches_of_moe.py::test_"
BOUNDED, THREADS, STREAMS = f"{MOE}what_is_kept_of_calls_is_bounded", f"{MOE}a_thread_waits", f"{MOE}memory_and_counters_are_a_stream_s"
TURNS, LOGITS = f"{MOE}launches_in_a_row_deal_tiles_from_different_counters", f"{MOE}experts_of_logits_lie_before_the_rest"
GEMM = "tests/runtime/test_gemm.py::test_"
SCRATCH_TEST = "tests/runtime/test_scratch.py::test_graphs_and_large_calls_have_memory_of_their_own"
LAUNCHES = "tests/runtime/test_launches_of_layers.py::test_"
COUNTERS_TEST = "tests/runtime/test_tile_counters.py::test_"


def case(family: str, change: str) -> str:
    """A pair of calls."""
    return f"{ROW}[{family}-{change}]"


fp8, nvfp4, routed = (partial(case, family) for family in ("moe fp8xfp8", "moe nvfp4xnvfp4", "moe of logits"))
bf16, pairs = partial(case, "moe bf16xbf16 sm_90a"), partial(case, "moe bf16xbf16 sm_100a")
dense, blocked, grouped = (partial(case, family) for family in ("gemm fp8xfp8", "gemm fp8xfp4", "grouped_gemm"))


def host(name: str, kind: str, where: str, old: str, new: str, *nearest: str, equivalent: str = "") -> Mutant:
    """A mistake that no simulation of one kernel goes through."""
    return Mutant(name, kind, where, old, new, nearest, archs=(), equivalent=equivalent)
