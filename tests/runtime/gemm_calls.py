"""Calls of GEMMs and of what makes their operands, and what each may be changed to."""

from __future__ import annotations

from typing import Any

import torch

from calls_in_a_row import Call, changes_of_place, changes_of_tensors
from megamoe_dsl import quantize_both

FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16


def gemm_call(recipe: str) -> Call:
    codes = torch.uint8
    types = {"fp8xfp8": (FP8, FP8), "bf16xbf16": (BF16, BF16), "fp8xfp4": (FP8, codes), "nvfp4xnvfp4": (codes, codes)}[recipe]
    a, b = (torch.zeros(rows, 128 if one == codes else 256, dtype=one) for rows, one in zip((40, 208), types, strict=True))
    scales: dict[str, Any] = {"a_sf": None, "b_sf": None}
    if recipe == "fp8xfp8":
        scales = {"a_sf": torch.ones(2, 40).T, "b_sf": torch.ones(2, 2)}
    elif recipe == "fp8xfp4":
        scales = {"a_sf": torch.zeros(2, 128, dtype=torch.int32), "b_sf": torch.zeros(2, 256, dtype=torch.int32)}
    elif recipe == "nvfp4xnvfp4":
        words = {"a_sf": torch.zeros(4, 128, dtype=torch.int32), "b_sf": torch.zeros(4, 256, dtype=torch.int32)}
        scales = {**words, "factors": torch.ones(1)}
    return Call({"a": a, "b": b, **scales, "out": torch.zeros(40, 208, dtype=BF16)})


def grouped_call() -> Call:
    given = {"a": torch.zeros(40, 256, dtype=FP8), "a_sf": torch.ones(2, 40).T, "b": torch.zeros(3, 208, 256, dtype=FP8)}
    return Call({**given, "b_sf": torch.ones(3, 2, 2), "groups": torch.zeros(3, dtype=torch.int32)})


def gemm_changes(call: Call) -> dict[str, Call]:
    given = call.arguments
    shifted: dict[str, Call] = {}
    rows = {name: given[name][:8] for name in ("a", "out") if given.get(name) is not None}
    if given["a_sf"] is not None and given["a_sf"].dtype == torch.float32:
        rows["a_sf"] = given["a_sf"][:8]
        shifted["a_sf by column, shifted"] = call.but(a_sf=torch.ones(81)[1:].view(2, 40).T)
    wide = {"out": torch.zeros(40, 208)}
    return {
        **changes_of_tensors(call),
        **changes_of_place(call),
        **shifted,
        "fewer rows": call.but(**rows),
        "f32": call.but(**wide),
        "added": call.but(**wide, accumulate=True),
        "f32, not given": call.but(out=None, out_dtype=torch.float32),
        "invariant": call.but(batch_invariant=True),
    }


def grouped_changes(call: Call) -> dict[str, Call]:
    """Also of the kinds that `groups` may have."""
    blocks, rows = torch.zeros(1, dtype=torch.int32), {name: call.arguments[name] for name in ("a", "a_sf")}
    masked = {"a": rows["a"].new_zeros(3, 8, 256), "a_sf": torch.ones(3, 2, 8).mT, "kind": "masked"}
    whole = {"a": rows["a"].new_zeros(128, 256), "a_sf": torch.ones(2, 128).T}
    return {
        **gemm_changes(call),
        "aligned": call.but(**whole, kind="aligned"),
        "contiguous": call.but(**whole, groups=blocks, kind="contiguous"),
        "masked": call.but(**masked),
    }


def columns_call() -> Call:
    """Of `k_grouped_gemm`: columns of three groups."""
    left, right = torch.zeros(64, 256, dtype=FP8), torch.zeros(96, 256, dtype=FP8)
    given = {"left": left, "left_sf": torch.ones(2, 64), "right": right, "right_sf": torch.ones(2, 96)}
    return Call({**given, "ends": torch.zeros(3, dtype=torch.int32), "out": torch.zeros(3, 64, 96, dtype=BF16)})


def columns_changes(call: Call) -> dict[str, Call]:
    given = call.arguments
    half = {
        name: given[name][:, :128] if name in ("left", "right") else given[name][:1] for name in ("left", "left_sf", "right", "right_sf")
    }
    return {
        **changes_of_tensors(call),
        **changes_of_place(call),
        "fewer columns": call.but(**{name: one.contiguous() for name, one in half.items()}),
        "f32": call.but(out=torch.zeros(3, 64, 96)),
        "f32, not given": call.but(out=None, out_dtype=torch.float32),
        "fewer": call.but(ends=torch.zeros(2, dtype=torch.int32), out=torch.zeros(2, 64, 96, dtype=BF16)),
    }


def both_ways_call() -> Call:
    return Call({"x": torch.zeros(256, 384, dtype=BF16), "sources": torch.zeros(128, dtype=torch.int32)})


def plain_quantize_both(**given: Any) -> tuple[torch.Tensor, ...]:
    return tuple(one for one in quantize_both(**given) if one is not None)


def both_ways_changes(call: Call) -> dict[str, Call]:
    return {
        **changes_of_tensors(call),
        **changes_of_place(call),
        "columns alone": call.but(rows=False),
        "more tokens": call.but(sources=torch.zeros(256, dtype=torch.int32)),
        "fewer channels": call.but(x=torch.zeros(256, 128, dtype=BF16)),
    }
