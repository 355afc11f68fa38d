"""Mutants of the mega_moe family, and its short simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mega_moe_bf16_mutants import BF16_MUTANTS
from mega_moe_dispatch_mutants import DISPATCH
from mega_moe_last_tile_mutants import LAST_TILE_MUTANTS
from mega_moe_mxfp8_mutants import MXFP8_MUTANTS
from mega_moe_numerics_mutants import NUMERICS_MUTANTS
from mega_moe_nvfp4_mutants import NVFP4_MUTANTS
from mega_moe_packed_mutants import PACKED_MUTANTS
from mega_moe_results_mutants import RESULTS_MUTANTS
from mega_moe_ring_mutants import RING_MUTANTS
from mega_moe_role_mutants import SM90_ROLES, SM100_ROLES
from mega_moe_runtime_mutants import RUNTIME
from mega_moe_tail_mutants import TAIL
from mega_moe_w4a4_mutants import W4A4_MUTANTS
from mutant import Mutant

FP4 = (*PACKED_MUTANTS, *W4A4_MUTANTS, *MXFP8_MUTANTS, *NVFP4_MUTANTS)
MUTANTS: tuple[Mutant, ...] = (
    *DISPATCH,
    *TAIL,
    *SM100_ROLES,
    *SM90_ROLES,
    *RING_MUTANTS,
    *RESULTS_MUTANTS,
    *FP4,
    *RUNTIME,
    *NUMERICS_MUTANTS,
    *LAST_TILE_MUTANTS,
    *BF16_MUTANTS,
)


def short_simulation(arch: str) -> str | None:
    """What shows that the kernel is wrong, as `kind: text`; None when nothing does.  Two ranks, launches without a pause, poisoned
    buffers, race detector on; on SM90 with tokens as the wgmma's columns and as its rows."""
    if arch == "sm_100a":
        from fault_runs import how_noticed

        return how_noticed(None)
    from test_sm90_faults import ORDERS
    from test_sm90_faults import how_noticed as how_noticed_sm90

    return next((sign for order in ORDERS if (sign := how_noticed_sm90(None, order)) is not None), None)


def ptx_faults() -> Iterator[tuple[str, str, Callable[[], str | None]]]:
    """Faults of the compiled PTX: architecture, name, and what runs the faulty kernel and says how the fault shows."""
    import fault_runs
    import test_sm90_faults
    from fault_trial import trials

    yield from trials(test_sm90_faults.ALL, test_sm90_faults.how_noticed, lambda order: "sm_90a")
    for name in sorted(fault_runs.catalogue(), key=lambda name: bool(why_unnoticed(name))):  # what takes longest comes last
        yield "sm_100a", name, lambda name=name: fault_runs.notice(name)


def why_unnoticed(name: str) -> str:
    """Why a fault of the PTX shows nowhere; empty for one that must show."""
    from test_faults import UNNOTICED

    return UNNOTICED.get(name, "")
