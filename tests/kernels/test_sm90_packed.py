"""The SM90 kernel with E2M1 weights (fp8xmxfp4) on simulated ranks: every tile, scales as far apart as can be, faults that show.

Race detector on; y equals the reference bit for bit (sm90_runs).
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from mega_moe_runs import Layer, inputs, received
from sm90_runs import HopperCase, config, hopper_case, prove
from sm90_runs import problem as fp8_problem

from megamoe_dsl import Target, choose
from megamoe_dsl.blocks.sm90 import load, packed_share
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.device import e2m1
from megamoe_dsl.device.ring import release_stage
from megamoe_dsl.hardware.packed_tile import CODE_BYTES
from megamoe_dsl.kernels.moe.sm90.config import PACKED_BLOCK_M, Sm90Config
from megamoe_dsl.problem import Problem
from ptx_of import artifact
from sweep import rarely, sample


def problem(tokens: int = 24, **changes: Any) -> Problem:
    return fp8_problem(tokens, **{"num_experts": 4, "recipe": "fp8xmxfp4", **changes})


@sample("8-False", "128-True")
@pytest.mark.parametrize(
    ("block_m", "exact"),
    [(block_m, False) for block_m in PACKED_BLOCK_M] + [(8, True), rarely(16, True), rarely(32, True), rarely(64, True), (128, True)],
)
def test_every_tile(block_m, exact):
    """An expert with a full and a partial block, experts with a few tokens; an odd number of K blocks in Linear2."""
    moe = problem(block_m + 5, intermediate=384 if exact else 128)
    full = block_m - 4
    prove(config(moe, block_m=block_m, lookahead=1, num_stages=3), [(full, 9)], seed=block_m, target_expert=1, mask=0.1, exact=exact)
    counts = received(hopper_case(moe, (full, 9), block_m, target_expert=1))[0]
    assert counts[1] % block_m != 0 and counts[1] > block_m


@pytest.mark.sweep
@pytest.mark.parametrize(("block_m", "tokens"), [(8, (24, 3, 0, 9)), rarely(64, (40, 0, 70, 1))])
def test_four_ranks_unequal_and_empty(block_m, tokens):
    """Launches in a row, counts that change, a rank without tokens, the deepest ring."""
    moe = problem(70, num_ranks=4, num_experts=8, topk=3)
    prove(config(moe, block_m=block_m, num_sms=2), [tokens, tokens[::-1]], mask=0.1)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [rarely(16), rarely(64), 128])
def test_random_data_to_the_bit_with_clamp(block_m):
    prove(config(problem(20, activation_clamp=10.0, hidden=512), block_m=block_m, num_stages=2), [(20, 11)], exact=False)


def pairs(moe: Problem, **overrides: Any) -> Sm90Config:
    """CTAs in pairs that decode a half each."""
    return config(moe, block_m=128, cluster=2, num_stages=2, **overrides)


@pytest.mark.sweep
@pytest.mark.parametrize("exact", [False, rarely(True)])
def test_pairs_share_weights_and_tokens(exact):
    """Of two ranks; expert 1 has three blocks, whose pairs have one tile of weights or one block of tokens, others a half tile."""
    moe = problem(160, hidden=512, intermediate=256)
    prove(pairs(moe, lookahead=1), [(160, 120)], target_expert=1, mask=0.1, exact=exact)


@pytest.mark.sweep
def test_pairs_of_changing_counts():
    """One rank, launches in a row, each with another number of blocks; tiles whose second block has few tokens."""
    moe = problem(300, num_ranks=1, num_experts=1, topk=1, hidden=512, intermediate=256)
    prove(pairs(moe, num_sms=2), [(140,), (0,), (300,)])


@sample("True")
@pytest.mark.parametrize("second", [False, True])
def test_pairs_of_rows_of_other_magnitudes(second):
    """Each row has its own power of two; in one group of 128 rows some E4M3 numbers are subnormal, and only the CTA that decodes it looks
    them up."""
    moe = problem(140, num_ranks=1, num_experts=1, topk=1, hidden=512, intermediate=256)
    draw = torch.Generator().manual_seed(0)
    case = spread_out(hopper_case(moe, (140,), 0, exact=False), torch.randint(-12, 13, (1024, 1), generator=draw))
    for one in case.weights:
        rows = one.fc2_sf[:, 128 * second :][:, :128]
        rows.fill_(120)
        rows[..., ::4], rows[..., 1::4] = 124, 110
    layer = Layer.of(artifact(pairs(moe, num_sms=2)), case)
    assert [one.unequal for one in layer.check(case)] == [0]


def spread_out(case: HopperCase, shift: torch.Tensor) -> HopperCase:
    """The same case with weight scales moved by powers of two, [rows, K / 32] or what spreads to it, in both linears."""

    def moved(sf: torch.Tensor) -> torch.Tensor:
        return (sf.int() + shift.expand(2 * sf.shape[1], 2 * sf.shape[2])[: sf.shape[1], : sf.shape[2]].int()).to(torch.uint8)

    weights = [replace(one, fc1_sf=moved(one.fc1_sf), fc2_sf=moved(one.fc2_sf)) for one in case.weights]
    return HopperCase(**{**{field.name: getattr(case, field.name) for field in fields(case)}, "weights": weights})


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [8, rarely(64), 128])
def test_channels_of_other_magnitudes(block_m):
    """The second 128 channels have scales 2^18 below the first ones': no shift spans that, the tile's own power of two does."""
    moe = problem(9, intermediate=256)
    far = torch.where(torch.arange(16) // 4 % 2 == 1, -18, 0).view(1, -1)
    case = spread_out(hopper_case(moe, (9, 5), 0, exact=False), far)
    layer = Layer.of(artifact(config(moe, block_m=block_m)), case)
    scales = layer.moe.ranks[0].weights.fc1[..., CODE_BYTES + 8 : CODE_BYTES + 12].contiguous().view(torch.int32) >> 23
    assert {tuple(one) for one in scales[..., 0].flatten(0, -2).tolist()} != {(127, 127)}
    assert [one.unequal for one in layer.check(case)] == [0, 0]


@sample("8")
@pytest.mark.parametrize("block_m", [8, 128])
def test_rows_of_zeros_and_of_other_magnitudes(block_m):
    """Each row has its own power of two, from 2^-12 to 2^12; some are zero."""
    moe = problem(9)
    draw = torch.randint(-12, 13, (512, 1), generator=torch.Generator().manual_seed(0))
    case = spread_out(hopper_case(moe, (9, 5), 0, exact=False), draw)
    for one in case.weights:
        one.fc1[:, ::7], one.fc2[:, ::5] = 0, 0x80
    layer = Layer.of(artifact(config(moe, block_m=block_m)), case)
    assert [one.unequal for one in layer.check(case)] == [0, 0]


@pytest.mark.parametrize(("block_m", "one_word"), [(8, False), (128, False), (128, True)], ids=["8", "128", "128-one-word"])
def test_scales_as_far_apart_as_can_be(block_m, one_word):
    """All shifts from 0 to 14 in the 128 channels of every row: from 12 on some E4M3 numbers are subnormal, and decode warps look them up.
    Or one such shift alone in a tile, in a thread's first word of Linear1 and its last of Linear2."""
    moe, draw = problem(9), torch.Generator().manual_seed(0)
    case = hopper_case(moe, (9, 5), 0, exact=False)
    for one in case.weights:
        for sf, row, shifted in ((one.fc1_sf, 3, 1), (one.fc2_sf, 75, 3)):
            if one_word:
                sf.fill_(124)
                sf[:, row::128, shifted::4] = 110
            else:
                sf.copy_(torch.randint(110, 125, sf.shape, generator=draw))
                sf[..., ::4], sf[..., 1::4] = 124, 110
    layer = Layer.of(artifact(config(moe, block_m=block_m)), case)
    assert [one.unequal for one in layer.check(case)] == [0, 0]


@sample("code-8", "row exponent-128")
@pytest.mark.parametrize("block_m", [8, 128])
@pytest.mark.parametrize("what", ["code", "shift", "tile scale", "row exponent"])
def test_one_wrong_bit_of_a_tile_is_noticed(what, block_m):
    """Of the first row and the last K block, whose exponents of rows count, of the busiest expert's W1."""
    moe = problem(9)
    case = hopper_case(moe, (9, 5), 3, exact=False)
    layer = Layer.of(artifact(config(moe, block_m=block_m)), case)
    layer.check(case)
    want = case.reference().y
    busiest = int(layer.moe.ranks[0].stats.argmax())
    tile = layer.moe.ranks[0].weights.fc1[busiest, 0, -1]
    place, bit = {"code": (0, 2), "shift": (CODE_BYTES, 8), "tile scale": (CODE_BYTES + 10, 128), "row exponent": (CODE_BYTES + 12, 1)}[
        what
    ]
    tile[place] ^= bit
    y, report = layer.moe(inputs(case))
    assert report.findings == []
    assert not all(torch.equal(a, b) for a, b in zip(y, want, strict=True))


def swapped(word, entry):
    return e2m1.decode(word, entry[::-1])


def nothing(*arguments):
    """In the place of an instruction that is left out."""


def always(stage, lane, condition):
    release_stage(stage, lane)


WRONG = {
    "entry swapped": (8, packed_share, "decode", swapped),
    "stage kept": (8, packed_share, "release_stage", nothing),
    "entry swapped by decode warps": (128, load, "decode", swapped),
    "codes kept": (128, load, "release_stage", nothing),
    "no fence after decoding": (128, load, "fence_async_shared", nothing),
    "lanes not together after decoding": (128, load, "sync_warp", nothing),
    "last stage given back twice": (128, packed_share, "release_if", always),
    "exponents' stage kept": (128, packed_share, "release_stage", nothing),
}


@sample("stage kept", "no fence after decoding")
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_instruction_is_noticed(monkeypatch, what):
    """By the race detector, by a deadlock, or in y."""
    from megamoe_dsl.sim import SimError

    block_m, module, name, instead = WRONG[what]
    moe = problem(8, num_ranks=1, num_experts=1, topk=1, hidden=512, intermediate=256)
    case = hopper_case(moe, (8,), 0, exact=False)
    monkeypatch.setattr(module, name, instead)
    layer = Layer.of(artifact.__wrapped__(config(moe, block_m=block_m, num_sms=2, num_stages=2)), case)
    try:
        ranks, report = layer.launch(case)
    except SimError:
        assert name in ("release_stage", "release_if")
    else:
        assert report.findings or ranks[0].unequal


def test_tiles_of_the_recipe():
    with pytest.raises(ConfigError, match=r"block_m = 64: must be one of \[8, 16, 32, 128\]"):
        choose(fp8_problem(64), Target.typical("sm_90a"), 64, block_m=64)
    with pytest.raises(ConfigError, match=r"cluster = 2: must be among \(1,\)"):
        choose(problem(64, intermediate=256, hidden=512), Target.typical("sm_90a"), 64, block_m=64, cluster=2)
    with pytest.raises(ConfigError, match=r"problem.recipe = 'fp8xfp4': must be fp8xfp8 or fp8xmxfp4 or bf16xbf16 for sm_90a"):
        choose(problem(64, recipe="fp8xfp4"), Target.typical("sm_90a"), 64)
