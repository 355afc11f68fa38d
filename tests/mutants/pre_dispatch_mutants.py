"""Mutants of the pre_dispatch family, and its short simulation."""

from __future__ import annotations

from mutant import Mutant

KERNEL = "kernels/pre_dispatch/kernel.py"
QUANTISE = "blocks/quantise.py"
BYTES = ("tests/runtime/test_pre_dispatch.py::test_bytes_equal_quant",)
PACKED = ("tests/runtime/test_pre_dispatch.py::test_bytes_equal_quant[7-7-mxf4xmxf4-False]",)
COPIED = ("tests/runtime/test_pre_dispatch.py::test_bytes_equal_quant[7-7-mxf4xmxf4-True]",)
SHARED = ("tests/kernels/test_shared_experts_layer.py::test_y_is_that_of_the_reference_with_their_slots[sm_100a-2]",)
LARGE = ("tests/runtime/test_pre_dispatch.py::test_more_chunks_and_slots_than_the_grid_has_warps_and_threads",)
MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "rows of padding keep stale experts, from BF16 or E4M3 inputs",
        "stale buffer",
        KERNEL,
        "if slot < args.num_tokens * topk:",
        "if slot < args.padded_tokens * topk:",
        ("tests/runtime/test_layer.py::test_rows_of_padding_are_zero",),
    ),
    Mutant(
        "padding ends one row early",
        "off by one",
        KERNEL,
        "slots = args.padded_tokens * config.problem.topk",
        "slots = (args.padded_tokens - 1) * config.problem.topk",
        BYTES,
    ),
    Mutant(
        "a maximum leaves out half of the lanes that share a scale",
        "wrong number",
        QUANTISE,
        "range(lanes.bit_length() - 1)",
        "range(lanes.bit_length() - 2)",
        BYTES,
    ),
    Mutant(
        "a scale lies at its lane's number, not at its block's",
        "wrong base",
        KERNEL,
        "scales = lane // config.lanes_per_scale, 32",
        "scales = lane & 1, 32",
        BYTES,
    ),
    Mutant(
        "CTAs quantise each other's chunks too",
        "wrong base",
        KERNEL,
        "chunks, config.num_sms * WARPS, unroll=1)",
        "chunks, WARPS, unroll=1)",
        LARGE,
    ),
    Mutant(
        "slots beyond the first of every thread are left out",
        "off by one",
        KERNEL,
        "slots, config.num_sms * THREADS, unroll=1)",
        "slots, 2 * config.num_sms * THREADS, unroll=1)",
        LARGE,
    ),
    Mutant(
        "a masked slot names expert 2^32 - 1",
        "too narrow",
        KERNEL,
        "idx, weight = Int64(-1), Int32(0)",
        "idx, weight = Int64(0xFFFFFFFF), Int32(0)",
        BYTES,
    ),
    Mutant(
        "blocks of zeros have a scale of their own",
        "wrong number",
        QUANTISE,
        "SMALLEST_AMAX = 1e-4",
        "SMALLEST_AMAX = 1e-5",
        BYTES,
    ),
    Mutant(
        "the last four channels of a lane are the first four's",
        "stale buffer",
        KERNEL,
        "pack_e4m3(*scaled[:4]), pack_e4m3(*scaled[4:]))",
        "pack_e4m3(*scaled[:4]), pack_e4m3(*scaled[:4]))",
        BYTES,
    ),
    Mutant(
        "packed tokens are stored as far apart as bytes",
        "wrong base",
        KERNEL,
        '"x") + channel // 2, pack_e2m1(',
        '"x") + channel, pack_e2m1(',
        PACKED,
        (),
    ),
    Mutant(
        "packed tokens that are quantised already are copied from where bytes would be",
        "wrong base",
        KERNEL,
        "load_u32(args.x + channel // 2)",
        "load_u32(args.x + channel)",
        COPIED,
        (),
    ),
    Mutant(
        "packed tokens have the scales of E4M3",
        "wrong number",
        KERNEL,
        "scale_exponent(amax, E2M1_MAX if config.packed else E4M3_MAX)",
        "scale_exponent(amax, E4M3_MAX)",
        PACKED,
        (),
    ),
    Mutant(
        "slots of all shared experts name the first",
        "wrong base",
        KERNEL,
        "args.first_shared + (place - given)",
        "args.first_shared",
        SHARED,
        (),
    ),
    Mutant(
        "routed experts keep their numbers beside shared ones",
        "wrong base",
        KERNEL,
        "shared.number_of(Int32(found))",
        "Int32(found)",
        SHARED,
        (),
    ),
    Mutant(
        "shared experts have no weight",
        "wrong number",
        KERNEL,
        "idx, weight = args.first_shared + (place - given), Int32(ONE)",
        "idx, weight = args.first_shared + (place - given), Int32(0)",
        SHARED,
        (),
    ),
    Mutant(
        "the two values of a byte change places",
        "wrong base",
        "device/cast.py",
        "{{{2 * i + 2}}}, {{{2 * i + 1}}};",
        "{{{2 * i + 1}}}, {{{2 * i + 2}}};",
        PACKED,
        (),
    ),
)


def short_simulation(arch: str) -> str | None:
    """What shows that the kernel is wrong, as `kind: text`; None when nothing does: five tokens and two rows of padding, byte by byte."""
    from test_pre_dispatch import SMALL, check_bytes

    from megamoe_dsl.sim import SimError

    try:
        check_bytes("fp8xfp8" if arch == "sm_90a" else "fp8xfp4", SMALL, 5, 7, quantised=False)
    except SimError as error:
        return f"simulator error: {error}"
    except AssertionError as error:
        return f"wrong result: {error}"
    return None
