"""Mutants of the pre_dispatch family, and its short simulation."""

from __future__ import annotations

from mutant import Mutant

BYTES = ("tests/runtime/test_pre_dispatch.py::test_bytes_equal_quant",)
PACKED = ("tests/runtime/test_pre_dispatch.py::test_bytes_equal_quant[7-mxf4xmxf4-False]",)
COPIED = ("tests/runtime/test_pre_dispatch.py::test_bytes_equal_quant[7-mxf4xmxf4-True]",)
NVFP4, NVFP4_COPIED = (
    (f"tests/runtime/test_pre_dispatch.py::test_bytes_equal_quant[7-nvfp4xnvfp4-{quantized}]",) for quantized in (False, True)
)
SHARED = ("tests/kernels/test_shared_experts_layer.py::test_y_is_that_of_the_reference_with_their_slots[sm_100a-2]",)
LARGE = ("tests/runtime/test_pre_dispatch.py::test_more_chunks_and_slots_than_the_grid_has_warps_and_threads",)
MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "tokens are quantized with the factor of gate's sums",
        "wrong base",
        "quantize_chunk",
        "ExpertFactors._fields.index('x')",
        "ExpertFactors._fields.index('gate')",
        NVFP4,
        (),
    ),
    Mutant(
        "words of scales are copied as those of 128 channels",
        "wrong number",
        "copy_chunk",
        "form.scale_words(CHUNK)",
        "CHUNK // 128",
        NVFP4_COPIED,
        (),
    ),
    Mutant(
        "the last token's slots are left out",
        "off by one",
        "pre_dispatch_kernel",
        "args.num_tokens * config.problem.topk",
        "(args.num_tokens - 1) * config.problem.topk",
        BYTES,
    ),
    Mutant(
        "a maximum leaves out half of the lanes that share a scale",
        "wrong number",
        "largest_of_lanes",
        "lanes.bit_length() - 1",
        "lanes.bit_length() - 2",
        BYTES,
    ),
    Mutant(
        "a scale lies at its lane's number, not at its block's",
        "wrong base",
        "quantize_chunk",
        "lane // config.lanes_per_scale",
        "lane & 1",
        BYTES,
    ),
    Mutant("CTAs quantize each other's chunks too", "wrong base", "pre_dispatch_kernel", "config.num_sms * WARPS", "WARPS", LARGE),
    Mutant(
        "slots beyond the first of every thread are left out",
        "off by one",
        "pre_dispatch_kernel",
        "config.num_sms * THREADS",
        "2 * config.num_sms * THREADS",
        LARGE,
    ),
    Mutant("blocks of zeros have a scale of their own", "wrong number", "SMALLEST_AMAX", "1e-4", "1e-5", BYTES),
    Mutant("the last four channels of a lane are the first four's", "stale buffer", "quantize_values", "scaled[4:]", "scaled[:4]", BYTES),
    Mutant("packed tokens are stored as far apart as bytes", "wrong base", "store_codes", "channel // 2", "channel", PACKED, ()),
    Mutant(
        "packed tokens that are quantized already are copied from where bytes would be",
        "wrong base",
        "copy_chunk",
        "args.x + channel // 2",
        "args.x + channel",
        COPIED,
        (),
    ),
    Mutant(
        "packed tokens have the scales of E4M3",
        "wrong number",
        "quantize_values",
        "E2M1_MAX if form.element == E2M1 else E4M3_MAX",
        "E4M3_MAX",
        PACKED,
        (),
    ),
    Mutant(
        "slots of all shared experts name the first",
        "wrong base",
        "fill_routing",
        "args.first_shared + (place - given)",
        "args.first_shared",
        SHARED,
        (),
    ),
    Mutant(
        "routed experts keep their numbers beside shared ones",
        "wrong base",
        "fill_routing",
        "shared.number_of(Int32(found))",
        "Int32(found)",
        SHARED,
        (),
    ),
    Mutant("shared experts have no weight", "wrong number", "fill_routing", "Int32(ONE)", "Int32(0)", SHARED, ()),
    Mutant(
        "the two values of a byte change places",
        "wrong base",
        "pack_e2m1",
        'f"cvt.rn.satfinite.e2m1x2.f32 {name}, {{{2 * i + 2}}}, {{{2 * i + 1}}};\\n\\t"',
        'f"cvt.rn.satfinite.e2m1x2.f32 {name}, {{{2 * i + 1}}}, {{{2 * i + 2}}};\\n\\t"',
        PACKED,
        (),
    ),
)


def short_simulation(arch: str) -> str | None:
    """What shows that the kernel is wrong, as `kind: text`; None when nothing does: five tokens of seven, byte by byte."""
    from test_pre_dispatch import SMALL, check_bytes

    from megamoe_dsl.sim import SimError

    try:
        check_bytes("fp8xfp8" if arch == "sm_90a" else "fp8xfp4", SMALL, 5, quantized=False)
    except SimError as error:
        return f"simulator error: {error}"
    except AssertionError as error:
        return f"wrong result: {error}"
    return None
