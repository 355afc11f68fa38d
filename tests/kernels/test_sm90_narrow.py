"""Narrow tiles in the compiled SM90 kernel on simulated ranks: few tokens as the wgmma's columns, beside tiles that have them as rows.

Race detector on; y equals the reference bit for bit (sm90_runs).
"""

from __future__ import annotations

import pytest
from mega_moe_runs import received
from sm90_runs import config, hopper_case, problem, prove

from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.mega_moe.sm90.config import NARROW
from sweep import rarely

TILES = NARROW[1:]


@pytest.mark.parametrize("narrow", [TILES[0], rarely(TILES[1])])
def test_edges(narrow):
    """Rows left over of a block of 128: as many as a narrow tile has, one less, one more; and a single token."""
    kernel = config(problem(170, num_ranks=1, topk=1, num_experts=2), block_m=128, num_sms=2, narrow=narrow)
    prove(kernel, [(128 + narrow - 1,), (narrow + 1,), (narrow,), (1,)], target_expert=0, exact=False)


@pytest.mark.parametrize("narrow", [rarely(TILES[0]), TILES[1]])
def test_all_kinds_of_tiles_follow_one_another(narrow):
    """Whole, half and narrow tiles of both linears on a CTA: what one stages, the next overwrites."""
    tokens = 2 * (128 + narrow) + 2
    moe = problem(tokens, num_ranks=1, num_experts=2, topk=1)
    prove(config(moe, block_m=128, num_sms=2, lookahead=1, narrow=narrow), [(tokens,)], exact=False)
    fewer, more = sorted(received(hopper_case(moe, (tokens,), 0))[0])
    assert 128 < fewer <= 128 + narrow < more <= 192


def test_pairs_of_ctas():
    """A pair of which one CTA has a whole tile and the other a narrow one."""
    moe = problem(140, num_ranks=1, num_experts=2, topk=1, hidden=512, intermediate=256)
    prove(config(moe, cluster=2, block_m=128, num_sms=2, lookahead=1, narrow=16), [(139,)], target_expert=1, exact=False)


def test_a_ring():
    moe = problem(150, num_experts=2, topk=1, pool_rows=256)
    prove(config(moe, block_m=128, num_sms=2, lookahead=1, narrow=32), [(150, 130)], target_expert=1, exact=False)


def test_results_in_8_bits():
    moe = problem(140, num_ranks=1, num_experts=2, topk=1, combine="e4m3")
    prove(config(moe, block_m=128, num_sms=2, narrow=16), [(139,)], target_expert=1, exact=False)


@pytest.mark.parametrize(("fields", "allowed"), [({"block_m": 128, "narrow": 24}, NARROW), ({"block_m": 32, "narrow": 16}, (0,))])
def test_other_values_are_refused(fields, allowed):
    with pytest.raises(ConfigError, match=rf"narrow = {fields['narrow']}: must be among {allowed}".replace("(", r"\(").replace(")", r"\)")):
        config(problem(140), **fields)
