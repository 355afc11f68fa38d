"""What the SM90 roles wait for and signal is needed and watched: each taken out or weakened on its own, something must notice.

`make test` runs each fault with one of the two orders of a tile, and some of those of 4-bit weights; all, four minutes on two cores, with

    python -m pytest -m faults -n 2 tests/kernels/test_sm90_faults.py
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from decoding_faults import DECODED_FAULTS, DECODING_FAULTS, HALVED_FAULTS, LOOP
from fault_runs import sign_of
from fault_trial import assert_fault_is_noticed, assert_faults_are_different, each_fault, each_subject
from sm90_faults import BF16_ROWS, COLUMNS_ONLY, FAULTS, PAIRS_ONLY, RING_ONLY, ROWS_ONLY, STUCK, Sm90Fault
from sm90_runs import HopperCase, config, hopper_case, problem

from megamoe_dsl.artifact.artifact import Artifact
from ptx_of import artifact
from sweep import sample

ORDERS = {"columns": 16, "rows": 128}
PAIRS, RING = "pairs", "ring"
PACKED, DECODED, HALVED = "packed", "decoded", "halved"
PLAIN = {f"{order} in BF16": order for order in ORDERS}
SUBJECTS = (*ORDERS, PAIRS, RING, PACKED, DECODED, HALVED, *PLAIN)
"""Three have weights of 4 bits, which math warps decode, or warps of their own, or those of two CTAs a half each."""
OF_SCALES = {"tokens without proxy fence", "a partial sum not cleared", "full not waited for, other stages"}
"""Faults of columns that BF16 does not have: bulk copies bring what TMA reads, no sum is promoted, the first wait is the last."""
OF_STORE_WARP = {
    *("store_full not waited for", "tile not stored", "store not committed", "store_empty before the tile is read"),
    *("store_empty not signalled", "store_empty signalled twice", "news before the tile is written", "store_empty not waited for"),
    *("Linear1 tile without proxy fence", "a partial sum not cleared"),
}
"""Those of rows: the store warp of BF16 tells news and stores nothing."""
ONE_ORDER = [
    *((fault, "columns") for fault in COLUMNS_ONLY),
    *((fault, "rows") for fault in ROWS_ONLY),
    *((fault, PAIRS) for fault in PAIRS_ONLY),
    *((fault, RING) for fault in RING_ONLY),
]
FOUR_BITS = [
    *((fault, PACKED) for fault in (*DECODING_FAULTS, *LOOP)),
    *((fault, DECODED) for fault in (*DECODED_FAULTS, *LOOP)),
    *((fault, HALVED) for fault in HALVED_FAULTS),
]
IN_BF16 = [
    *((replace(fault, signs=(*fault.signs, *STUCK)), "columns in BF16") for fault in FAULTS if fault.name not in OF_SCALES),
    *((fault, "rows in BF16") for fault in (*BF16_ROWS, *(fault for fault in FAULTS if fault.name not in OF_STORE_WARP))),
]
ALL = [(fault, order) for order in ORDERS for fault in FAULTS] + ONE_ORDER + FOUR_BITS + IN_BF16
SAMPLE = ([(fault, list(ORDERS)[i % 2]) for i, fault in enumerate(FAULTS)] + ONE_ORDER + FOUR_BITS[5::8])[::3] + IN_BF16[4::12]


@cache
def subject(order: str) -> tuple[Artifact, HopperCase]:
    """A kernel whose CTAs work on several tiles of a phase in a row, and whose ring wraps.  Of pairs: expert 1 has three token blocks, so
    they share weights and tokens."""
    if order == PAIRS:
        moe = problem(160, num_experts=4, intermediate=256, hidden=512)
        kernel = config(moe, block_m=128, lookahead=2, num_stages=2, num_sms=4, cluster=2)
        return artifact(kernel), hopper_case(moe, (160, 120), 0, target_expert=1)
    if order == RING:  # of eight blocks; one expert has fifteen
        moe = problem(130, num_experts=2, topk=1)
        return artifact(config(moe, pool_rows=128, block_m=16, num_stages=2, num_sms=2)), hopper_case(moe, (130, 100), 0, target_expert=0)
    if order in (PACKED, DECODED):
        tokens, block_m = (9, 8) if order == PACKED else (70, 128)
        moe = problem(tokens, num_ranks=1, num_experts=2, topk=1, intermediate=256, recipe="fp8xmxfp4")
        kernel = config(moe, block_m=block_m, num_stages=2, num_sms=2)
        return artifact(kernel), hopper_case(moe, (tokens,), 0, target_expert=1, exact=False)
    if order == HALVED:  # three blocks, so that CTAs share weights and tokens
        moe = problem(270, num_ranks=1, num_experts=1, topk=1, hidden=512, intermediate=256, recipe="fp8xmxfp4")
        kernel = config(moe, block_m=128, num_stages=2, num_sms=2, cluster=2)
        return artifact(kernel), hopper_case(moe, (270,), 0, exact=False)
    # As rows: one expert with more tokens than a warpgroup has, others with fewer.
    side = PLAIN.get(order, order)
    tokens = {"columns": (24, 5), "rows": (70, 5)}[side]
    moe = problem(max(tokens), num_experts=4, intermediate=256, recipe="bf16xbf16" if order in PLAIN else "fp8xfp8")
    kernel = config(moe, block_m=ORDERS[side], lookahead=2, num_stages=2, num_sms=2)
    return artifact(kernel), hopper_case(moe, tokens, 0, target_expert=None if side == "columns" else 1)


def how_noticed(fault: Sm90Fault | None, order: str, seed: int = 0) -> str | None:
    """The first sign of a fault (None: no fault) under one schedule, as `kind: text`; None when there is none."""
    compiled, case = subject(order)
    if fault is not None:
        faulty = fault.apply(compiled.ptx)
        assert faulty != compiled.ptx
        compiled = replace(compiled, ptx=faulty)
    tokens = [len(x) for x in case.x]
    return sign_of(compiled, case, (tokens, (3, 2)[: len(tokens)], (0, 0)[: len(tokens)]), seed)


@sample("columns", "packed")
@pytest.mark.parametrize("order", SUBJECTS)
def test_the_kernel_itself_shows_no_sign(order):
    assert how_noticed(None, order) is None


@pytest.mark.parametrize("order", each_subject(SUBJECTS, SAMPLE))
def test_faults_are_different(order):
    faults = [fault for fault, its in ALL if its == order]
    assert_faults_are_different(faults, subject(order)[0].ptx)
    assert len(faults) > {PAIRS: 8, RING: 6, PACKED: 12, DECODED: 18, HALVED: 12}.get(order, 25)


@each_fault(ALL, SAMPLE)
def test_fault_is_noticed(fault, subject):
    assert_fault_is_noticed(how_noticed, fault, subject)
