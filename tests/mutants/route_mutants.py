"""Mutants of the route family; a test of its own runs each."""

from __future__ import annotations

from mutant import Mutant

FILE = "kernels/expert_routing/route.py"
NVFP4_TOKENS = ("tests/kernels/test_expert_layer_sm100.py::test_tokens_are_quantised_as_torch_does",)
SORTED = ("tests/kernels/test_expert_routing.py::test_slots_are_sorted_and_tokens_quantised",)


def mutant(name: str, kind: str, old: str, new: str) -> Mutant:
    """One of the kernel."""
    return Mutant(name, kind, FILE, old, new, SORTED, ())


def quantising(name: str, old: str, new: str) -> Mutant:
    """One of the rule of NVFP4, which gate and up follow, too."""
    return Mutant(f"NVFP4: {name}", "wrong number", "blocks/quantise.py", old, new, NVFP4_TOKENS, ())


def sorting(name: str, kind: str, old: str, new: str) -> Mutant:
    """One of the sort that it shares with routing_tables."""
    return Mutant(name, kind, "blocks/block_sort.py", old, new, SORTED, ())


MUTANTS = (
    sorting(
        "slots of one expert in a warp have one row",
        "off by one",
        "load_shared_u32(counts + key * 4) + before",
        "load_shared_u32(counts + key * 4)",
    ),
    sorting("an expert's next row is one too low", "off by one", "found.place + popc(found.same))", "found.place + popc(found.same) - 1)"),
    mutant("warps count before all counts are cleared", "missing order", "    cute.arch.sync_threads()\n    lanes", "    lanes"),
    sorting(
        "rows of experts in warps before are not counted",
        "wrong base",
        "cutlass.select_(warp > one, of_warp, Int32(0))",
        "cutlass.select_(warp > one, Int32(0), Int32(0))",
    ),
    sorting("a lane counts on before the others have read", "missing order", "    sync_warp()\n    if (key", "    if (key"),
    mutant(
        "an expert that is not there has rows",
        "off by one",
        "(name < config.problem.num_experts)",
        "(name <= config.problem.num_experts + 9)",
    ),
    mutant("counts are added before all CTAs have counted", "missing order", '"gpu") < ctas:', '"gpu") < 1:'),
    mutant(
        "counts of CTAs are not released",
        "missing order",
        'reduce_add_u32(counter, 1, "release", "gpu")',
        'reduce_add_u32(counter, 1, "relaxed", "gpu")',
    ),
    mutant(
        "slots of a CTA itself lie before it", "off by one", "cutlass.select_(cta > other, number", "cutlass.select_(cta >= other, number"
    ),
    mutant("nobody sets the counter back", "off by one", "== 2 * ctas - 1:", "== 2 * ctas:"),
    quantising("a scale of zero is divided by", 'cutlass.select_(divisor > Float32(0.0), divisor, Float32(float("inf")))', "divisor"),
    quantising("codes are of a scale before it was rounded", "scaled_by([scale], factor)", "scaled_by([divided(amax, whole)], factor)"),
    quantising("a scale is for E4M3", "scaled_by([factor], Float32(E2M1_MAX))", "scaled_by([factor], Float32(E4M3_MAX))"),
    quantising(
        "values are multiplied by a rounded reciprocal", "divided(value, divisor) for", "value * divided(Float32(1.0), divisor) for"
    ),
    Mutant(
        "NVFP4: a scale is shared by four lanes",
        "wrong number",
        FILE,
        "quantise_ue4m3(words, form.channels // PER_LANE",
        "quantise_ue4m3(words, 4",
        NVFP4_TOKENS,
        (),
    ),
)
