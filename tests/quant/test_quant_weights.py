"""Weight transforms against index arithmetic written out, and their inverses."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megamoe_dsl import quant
from megamoe_dsl.arch import SM100
from megamoe_dsl.cases import random_weights
from megamoe_dsl.problem import Problem, ProblemError

torch.set_num_threads(1)


def random_bytes(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 255, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_interleave_places_gate_and_up_rows():
    w = torch.arange(64).reshape(1, 64, 1)
    rows = quant.interleave_gate_up(w).flatten().tolist()
    assert rows[:24] == [*range(8), *range(32, 40), *range(8, 16)]


@given(st.integers(1, 4), st.sampled_from([1, 2, 8]), st.integers(1, 3), st.sampled_from([0, 1, 2]))
@settings(max_examples=40)
def test_interleave_inverse(runs, group, columns, dim):
    shape = [3, 3, columns]
    shape[dim] = 2 * runs * group
    w = random_bytes(*shape)
    mixed = quant.interleave_gate_up(w, group, dim)
    assert mixed.is_contiguous()
    assert torch.equal(quant.interleave_gate_up(mixed, group, dim, inverse=True), w)
    half = runs * group
    for row in range(2 * half):
        is_up, index = divmod(row, half)
        target = (index // group * 2 + is_up) * group + index % group
        assert torch.equal(mixed.select(dim, target), w.select(dim, row))


@given(st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=20)
def test_utccp_order_places_every_byte(atoms, k_words):
    rows = 128 * atoms
    sf = random_bytes(rows, 4 * k_words)
    words = quant.utccp_scale_order(sf)
    assert words.shape == (k_words, rows) and words.dtype == torch.int32
    placed = words.view(torch.uint8).reshape(k_words, rows, 4)
    m = torch.arange(rows)
    target = m // 128 * 128 + (m % 32) * 4 + (m % 128) // 32
    assert torch.equal(placed[:, target].permute(1, 0, 2).reshape(rows, -1), sf)
    assert torch.equal(quant.inverse_utccp_scale_order(words), sf)


def test_utccp_order_matches_the_512_byte_atom():
    # SM100 facts: byte = (m % 32) * 16 + (m / 32) * 4 + k inside an atom of 128 rows and 4 scales.
    sf = random_bytes(128, 4)
    atom = quant.utccp_scale_order(sf).view(torch.uint8).flatten()
    for m in (0, 1, 31, 32, 77, 127):
        for k in range(4):
            assert atom[(m % 32) * 16 + (m // 32) * 4 + k] == sf[m, k]


def test_utccp_batch_is_expert_outermost():
    sf = random_bytes(3, 256, 8)
    words = quant.utccp_scale_order(sf)
    assert words.shape == (3 * 2, 256)
    for expert in range(3):
        assert torch.equal(words[2 * expert : 2 * expert + 2], quant.utccp_scale_order(sf[expert]))
    assert torch.equal(quant.inverse_utccp_scale_order(words, 3), sf)


PROBLEM = Problem(512, 256, 2, 1, recipe="fp8xfp4")


def checkpoint() -> dict[str, torch.Tensor]:
    el, h, i = 2, 512, 256
    return {
        "fc1": random_bytes(el, 2 * i, h // 2, seed=1),
        "fc1_sf": random_bytes(el, 2 * i, h // 32, seed=2),
        "fc2": random_bytes(el, h, i // 2, seed=3),
        "fc2_sf": random_bytes(el, h, i // 32, seed=4),
    }


def test_transform_weights_round_trip_and_shapes():
    plain = checkpoint()
    moved = quant.transform_weights(PROBLEM, SM100, quant.ExpertWeights(**plain))
    assert moved.fc1_sf.shape == (2 * 4, 512) and moved.fc2_sf.shape == (2 * 2, 512)
    assert moved.fc1.shape == (2, 4, 4, 128, 64)  # tiles of 128 rows by 128 channels
    assert torch.equal(moved.fc1[:, 0, 1, 8:16], plain["fc1"][:, 256:264, 64:128])
    back = quant.inverse_transform_weights(PROBLEM, SM100, moved)
    for name, tensor in plain.items():
        assert torch.equal(getattr(back, name), tensor), name
    # The scale of interleaved row 8 (up row 0) of expert 1, K block 5: word 1 of K, row 8 of the atom at word 32, byte 1.
    assert moved.fc1_sf.view(torch.uint8).reshape(8, 512, 4)[4 + 1, 32, 1] == plain["fc1_sf"][1, 256, 5]


def test_biases_in_bfloat16_are_the_same_numbers():
    problem = Problem(256, 128, 4, 2, recipe="fp8xfp8", biases=True)
    given = random_weights(problem, 0, 0)
    narrow = {name: getattr(given, name).bfloat16() for name in quant.weights.BIAS_NAMES}
    found = replace(given, **narrow)
    found.validate(problem)
    for name, one in narrow.items():
        assert getattr(found, name).dtype == torch.float32 and torch.equal(getattr(found, name), one.float())


def test_weights_without_scales_fit_their_problem():
    problem = Problem(512, 128, 4, 2, recipe="bf16xbf16")
    quant.unscaled_weights(torch.zeros(4, 256, 512).bfloat16(), torch.zeros(4, 512, 128).bfloat16()).validate(problem)


def test_transform_errors_name_the_field():
    plain = checkpoint()
    plain["fc2_sf"] = plain["fc2_sf"][:, :, :-1]
    with pytest.raises(ValueError, match=r"fc2_sf.shape = \(2, 512, 7\): must be \(2, 512, 8\)"):
        quant.transform_weights(PROBLEM, SM100, quant.ExpertWeights(**plain))
    plain = checkpoint()
    plain["fc1"] = plain["fc1"].int()
    with pytest.raises(ValueError, match=r"fc1.dtype = torch.int32: must be torch.uint8"):
        quant.transform_weights(PROBLEM, SM100, quant.ExpertWeights(**plain))
    with pytest.raises(ValueError, match=r"sf.shape\[-2\] = 64: must be a multiple of 128"):
        quant.utccp_scale_order(random_bytes(64, 4))
    with pytest.raises(ValueError, match=r"sf.shape\[-1\] = 6: must be a multiple of 4"):
        quant.utccp_scale_order(random_bytes(128, 6))
    with pytest.raises(ValueError, match=r"sf\.dtype = torch\.int8: must be torch\.uint8"):
        quant.utccp_scale_order(random_bytes(128, 4).view(torch.int8))
    for rows, k in ((384, 128), (256, 64)):
        with pytest.raises(ValueError, match=rf"w.shape\[-2:\] = \({rows}, {k}\): must be multiples of 256 and 128"):
            quant.tile_sm90(random_bytes(2, rows, k).view(torch.float8_e4m3fn))
    words = torch.zeros(4, 128, dtype=torch.int32)
    for bad, batch, message in (
        (words.byte(), None, "words = 'torch.uint8 with 2 dimensions': must be torch.int32 with 2"),
        (words[0], None, "words = 'torch.int32 with 1 dimensions'"),
        (words[:, :64], None, r"words.shape\[1\] = 64: must be a multiple of 128"),
        (words, 3, r"batch = 3: must be a divisor of words.shape\[0\] = 4"),
        (words, 0, "batch = 0: must be"),
    ):
        with pytest.raises(ValueError, match=message):
            quant.inverse_utccp_scale_order(bad, batch)
    with pytest.raises(ValueError, match=r"w.shape\[-2\] = 24: must be a multiple of 2 \* group = 16"):
        quant.interleave_gate_up(random_bytes(24, 1))


@pytest.mark.parametrize(("rows", "group"), [(16, 0), (16, -8), (24, 8), (8, 8)])
def test_rows_that_do_not_interleave_are_named(rows, group):
    with pytest.raises(ProblemError, match=rf"w\.shape\[-2\] = {rows}: must be a multiple of 2 \* group = {2 * group}"):
        quant.interleave_gate_up(torch.zeros(rows, 4), group)
