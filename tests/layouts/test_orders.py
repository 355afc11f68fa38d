"""Scale-factor order and swizzles, on the host and on traced integers."""

import os

import pytest
from hardware_layouts import utccp_row_inverse
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_properties import bank_groups, check_sf_order, check_swizzle

from megamoe_dsl.hardware.operand_tile import SF_ATOM_BYTES, SW64, SW128, Swizzle, pool_sf_row, utccp_row


@pytest.fixture(scope="module")
def int32():
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
    from cutlass import Int32

    return Int32


def test_utccp_order_matches_the_scale_factor_atom():
    check_sf_order(utccp_row, utccp_row_inverse)
    assert SF_ATOM_BYTES == 512


def test_utccp_lands_a_row_in_its_lane_and_column():
    """tcgen05.cp.32x128b reads 32 lanes of 16 bytes: word w of the atom goes to lane w / 4, column w % 4 (SM100_FACTS)."""
    for row in range(128):
        lane, column = divmod(utccp_row(row), 4)
        assert (lane, column) == (row % 32, row // 32)


@settings(max_examples=80)
@given(st.integers(0, (1 << 27) - 1))
def test_utccp_row_is_invertible_and_stays_in_its_atom(row):
    assert utccp_row(row) // 128 == row // 128
    assert utccp_row_inverse(utccp_row(row)) == row == utccp_row(utccp_row_inverse(row))


@settings(max_examples=80)
@given(st.integers(0, 1 << 20), st.integers(0, 255), st.sampled_from((128, 256)))
def test_traced_scale_factor_order(int32, block, row, sf_block_m):
    assert int(utccp_row(int32(row))) == utccp_row(row)
    assert int(utccp_row_inverse(int32(row))) == utccp_row_inverse(row)
    assert int(pool_sf_row(int32(block), int32(row), sf_block_m)) == pool_sf_row(block, row, sf_block_m)


@settings(max_examples=80)
@given(st.integers(0, 1 << 16), st.sampled_from((16, 32, 64, 96, 128, 192)))
def test_blocks_have_scale_words_of_their_own(block, block_m):
    width = -(-block_m // 128) * 128
    words = {pool_sf_row(block, row, width) for row in range(block_m)}
    assert len(words) == block_m and {word // width for word in words} == {block}


@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_swizzle_permutes_chunks_of_a_row(span):
    check_swizzle(Swizzle(span), span)
    assert Swizzle(span).alignment == max(8 * span, 16)


@pytest.mark.parametrize(
    ("span", "pitch", "groups"),
    [(128, 128, 8), (64, 64, 8), (32, 32, 8), (64, 128, 4), (32, 128, 2), (0, 128, 1), (0, 64, 2), (0, 32, 4)],
)
def test_bank_groups_of_a_column(span, pitch, groups):
    """A swizzle spreads a column of its own row length over all banks; in rows of 128 bytes SW64 reaches half of them, SW32 a quarter."""
    for column in range(max(span, 16) // 16):
        assert bank_groups(Swizzle(span), pitch, column) == groups


@settings(max_examples=80)
@given(st.integers(0, (1 << 24) - 1), st.sampled_from((0, 32, 64, 128)))
def test_traced_swizzle(int32, address, span):
    assert int(Swizzle(span)(int32(address))) == Swizzle(span)(address)


@settings(max_examples=80)
@given(st.integers(0, 1 << 10), st.integers(0, 7), st.integers(0, 127))
def test_swizzle_formula(atom, row, byte):
    """SM100_FACTS: chunk c of row r goes to chunk c ^ (r & 7) of a 128-byte row; with 64 bytes two rows share the three bits."""
    assert SW128(atom * 1024 + row * 128 + byte) == atom * 1024 + row * 128 + ((byte // 16) ^ row) * 16 + byte % 16
    byte %= 64
    assert SW64(atom * 512 + row * 64 + byte) == atom * 512 + row * 64 + ((byte // 16) ^ (row // 2)) * 16 + byte % 16


@pytest.mark.parametrize("span", [16, 48, 256, -1])
def test_unknown_span(span):
    with pytest.raises(ValueError, match=rf"span = {span}: must be 0, 32, 64 or 128"):
        Swizzle(span)
