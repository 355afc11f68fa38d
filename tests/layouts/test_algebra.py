"""The layout algebra: every post-condition that a docstring states, on random layouts, by enumeration."""

from itertools import product as combinations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from drawn_layouts import layouts
from layout_algebra import (
    coalesce,
    complement,
    composition,
    coordinates,
    identity,
    join,
    logical_divide,
    logical_product,
    right_inverse,
    row_major,
    same_function,
    swizzled,
)
from megamoe_dsl.hardware.operand_tile import SW32, SW64, SW128
from megamoe_dsl.layouts.layout import Layout, LayoutError, compact_strides, congruent, crd2idx, flatten, idx2crd, unflatten

POWERS = (1, 2, 4, 8)
EXAMPLES = settings(max_examples=80)


def values(layout):
    return layout.indices()


# --- coordinates
@EXAMPLES
@given(layouts())
def test_coordinates_and_indices(layout):
    natural = list(coordinates(layout.shape))
    assert len(natural) == layout.size and len(set(natural)) == layout.size
    strides = compact_strides(layout.shape)
    for index, coordinate in enumerate(natural):
        assert congruent(coordinate, layout.shape)
        assert all(0 <= c < n for c, n in zip(flatten(coordinate), flatten(layout.shape), strict=True))
        assert crd2idx(coordinate, layout.shape, strides) == index
        assert idx2crd(index, layout.shape) == coordinate
        inner = sum(c * d for c, d in zip(flatten(coordinate), flatten(layout.stride), strict=True))
        assert layout(coordinate) == layout(index) == inner
    assert layout.cosize == max(values(layout)) + 1
    assert layout.injective == (len(set(values(layout))) == layout.size)


@EXAMPLES
@given(layouts(), st.data())
def test_a_mode_may_be_given_as_an_index(layout, data):
    """Any mixture of natural coordinates and indices of modes means the same."""
    index = data.draw(st.integers(0, layout.size - 1))

    def mixed(coordinate, shape):
        if not isinstance(shape, tuple) or data.draw(st.booleans()):
            return crd2idx(coordinate, shape, compact_strides(shape))
        return tuple(mixed(c, s) for c, s in zip(coordinate, shape, strict=True))

    assert layout(mixed(idx2crd(index, layout.shape), layout.shape)) == layout(index)


@EXAMPLES
@given(layouts())
def test_flatten_and_unflatten(layout):
    assert unflatten(flatten(layout.shape), layout.shape) == layout.shape
    assert flatten(unflatten(range(len(layout.leaves)), layout.shape)) == tuple(range(len(layout.leaves)))


# --- coalesce
@EXAMPLES
@given(layouts())
def test_coalesce_preserves_the_function(layout):
    flat = coalesce(layout)
    assert values(flat) == values(layout)
    assert not any(isinstance(n, tuple) for n in (flat.shape if isinstance(flat.shape, tuple) else (flat.shape,)))
    assert flat.rank == 1 or all(n > 1 for n, _ in flat.leaves)
    assert all(n * d != e for (n, d), (_, e) in zip(flat.leaves, flat.leaves[1:], strict=False))
    assert coalesce(flat) == flat


@EXAMPLES
@given(layouts())
def test_coalesce_by_mode(layout):
    if isinstance(layout.shape, tuple):
        flat = coalesce(layout, (1,) * layout.rank)
        assert flat.rank == layout.rank and values(flat) == values(layout)
        assert [values(m) for m in flat.modes] == [values(m) for m in layout.modes]


@EXAMPLES
@given(layouts(max_size=24), layouts(max_size=24))
def test_same_function_is_equality_of_values(a, b):
    assert same_function(a, b) == (values(a) == values(b))


# --- composition
@EXAMPLES
@given(layouts(), layouts("nested", max_size=32))
def test_composition(a, b):
    try:
        result = composition(a, b)
    except LayoutError:
        assume(False)
    assert values(result) == [a(i) for i in values(b)]
    assert result.size == b.size and (not isinstance(b.shape, tuple) or result.rank == b.rank)


@pytest.mark.parametrize("a", [Layout(()), Layout((4, ())), Layout((2, (3, ())))], ids=str)
@pytest.mark.parametrize("b", [Layout(()), Layout(1), Layout((2, 6)), Layout(24)], ids=str)
def test_composition_with_a_layout_that_ends_without_a_mode(a, b):
    """Beyond a's size it gives what it gives for 0 there."""
    assert values(composition(a, b)) == [a(i) for i in values(b)]


def test_division_of_a_layout_without_modes():
    assert logical_divide(Layout(()), 1) == Layout((1, 1), (0, 0))


@EXAMPLES
@given(layouts("nested", extents=POWERS), layouts("nested", extents=POWERS, max_size=32))
def test_composition_of_powers_of_two_is_always_defined(a, b):
    """Also beyond a's size, where a's last leaf continues."""
    assert values(composition(a, b)) == [a(i) for i in values(b)]


@EXAMPLES
@given(layouts(extents=POWERS), layouts("bijective", extents=POWERS), layouts("bijective", extents=POWERS))
def test_composition_is_associative(a, b, c):
    assume(c.size <= b.size <= a.size)
    left, right = composition(composition(a, b), c), composition(a, composition(b, c))
    assert same_function(left, right)


@EXAMPLES
@given(layouts())
def test_identity_is_neutral(a):
    assert same_function(composition(a, identity(a.size)), a)
    if a.injective and a.size == a.cosize:
        assert same_function(composition(identity(a.cosize), a), a)


@EXAMPLES
@given(layouts(extents=POWERS, max_size=32), layouts(extents=POWERS, max_size=32), st.data())
def test_composition_by_mode(a, b, data):
    tilers = tuple(data.draw(st.one_of(st.none(), layouts("bijective", extents=POWERS, max_size=m.size))) for m in (a, b))
    result = composition(join(a, b), tilers)
    sizes = [m.size if t is None else t.size for m, t in zip((a, b), tilers, strict=True)]
    for i, j in combinations(*map(range, sizes)):
        expected = [m(i if t is None else t(i)) for m, t, i in zip((a, b), tilers, (i, j), strict=True)]
        assert result(i, j) == sum(expected)


# --- complement
@EXAMPLES
@given(layouts("nested"), st.integers(1, 512))
def test_complement_completes(layout, cosize):
    rest = complement(layout, cosize)
    both = values(join(layout, rest))
    assert len(set(both)) == len(both)
    assert set(range(cosize)) <= set(range(max(both) + 1)) == set(both)
    assert values(rest) == sorted(values(rest))
    assert set(values(rest)) & set(values(layout)) == {0}


@EXAMPLES
@given(layouts())
def test_complement_is_refused_where_it_does_not_exist(layout):
    try:
        rest = complement(layout, layout.cosize)
    except LayoutError:
        return
    visible = Layout(tuple(n for n, d in layout.leaves if d) or 1, tuple(d for _, d in layout.leaves if d) or 0)
    assert join(visible, rest).injective


# --- inverses
@EXAMPLES
@given(layouts())
@example(Layout((6, 2, 2), (1, 1, 6)))
def test_right_inverse(layout):
    inverse = right_inverse(layout)
    assert [layout(inverse(i)) for i in range(inverse.size)] == list(range(inverse.size))


def test_right_inverse_passes_over_repeated_indices():
    assert right_inverse(Layout((6, 2, 2), (1, 1, 6))).size == 12


@EXAMPLES
@given(layouts("bijective"))
def test_inverse_of_inverse(layout):
    inverse = right_inverse(layout)
    assert inverse.size == layout.size
    assert same_function(right_inverse(inverse), layout)


# --- divide and product
@EXAMPLES
@given(layouts(extents=POWERS), layouts("nested", extents=POWERS, max_size=16))
def test_logical_divide(a, tile):
    assume(tile.cosize <= a.size)
    result, rest = logical_divide(a, tile), complement(tile, a.size)
    assert [result[0](i) for i in range(tile.size)] == [a(tile(i)) for i in range(tile.size)]
    for i, j in combinations(range(tile.size), range(rest.size)):
        assert result(i, j) == a(tile(i) + rest(j))
    if a.size % coalesce(join(tile, rest)).cosize == 0:
        assert sorted(values(result)) == sorted(values(a))


@EXAMPLES
@given(layouts("nested", max_size=32), layouts("nested", max_size=16))
def test_logical_product(a, tiles):
    try:
        result = logical_product(a, tiles)
    except LayoutError:
        assume(False)
    rest = complement(a, a.size * tiles.cosize)
    assert result[0] == a
    for i, j in combinations(range(a.size), range(tiles.size)):
        assert result(i, j) == a(i) + rest(tiles(j))
    assert result.injective


def test_divide_keeps_modes_without_a_tiler():
    a = Layout((8, 4, 3), (1, 8, 100))
    assert str(logical_divide(a, (None, 2))) == "(8,(2,2),3):(1,(8,16),100)"


# --- swizzles


@EXAMPLES
@given(layouts("bijective", extents=POWERS), st.sampled_from((SW32, SW64, SW128)), st.integers(0, 64), st.data())
def test_swizzled_layouts(layout, swizzle, offset, data):
    composed = swizzled(swizzle, layout, offset)
    assert composed.size == layout.size and composed.injective and composed.shape == layout.shape
    assert list(composed.indices()) == [swizzle(offset + i) for i in values(layout)]
    assert composed.cosize == max(composed.indices()) + 1
    tile = data.draw(layouts("bijective", extents=POWERS, max_size=layout.size))
    part = composition(composed, tile)
    assert list(part.indices()) == [composed(tile(i)) for i in range(tile.size)]


# --- by hand, and errors
def test_examples_of_the_cute_documentation():
    """NVIDIA/cutlass, media/docs/cpp/cute/02_layout_algebra.md."""
    assert str(coalesce(Layout((2, (1, 6)), (1, (6, 2))))) == "12:1"
    assert str(composition(Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1)))) == "((2,2),3):((24,2),8)"
    assert str(composition(Layout((10, 2), (16, 4)), Layout((5, 4), (1, 5)))) == "(5,(2,2)):(16,(80,4))"
    assert str(complement(Layout((2, 2), (1, 6)), 24)) == "(3,2):(2,12)"
    assert str(logical_divide(Layout((4, 2, 3), (2, 1, 8)), Layout(4, 2))) == "((2,2),(2,3)):((4,1),(2,8))"
    assert str(logical_product(Layout((2, 2), (4, 1)), Layout(6, 1))) == "((2,2),(2,3)):((4,1),(2,8))"
    assert row_major(2, 3, 4) == Layout((2, 3, 4), (12, 4, 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Layout((4, 0)), r"shape \(4, 0\): must hold positive"),
        (lambda: Layout((4, 2.0)), r"shape \(4, 2.0\)"),
        (lambda: Layout((4, 2), 1), r"stride 1: must nest like shape \(4, 2\)"),
        (lambda: Layout(4, -1), r"stride -1: must hold non-negative"),
        (lambda: Layout((4, 2))((1, 2, 3)), r"coordinate \(1, 2, 3\): does not fit shape \(4, 2\)"),
        (lambda: Layout(4)((1, 2)), r"coordinate \(1, 2\): does not fit shape 4"),
        (lambda: composition(Layout((4, 6), (1, 10)), Layout(3, 3)), r"\(4,6\):\(1,10\) after 3:3: a step of 3 over 3 places"),
        (lambda: composition(Layout(4), (2, 2)), "2 tilers for 4:1, which has 1 modes"),
        (lambda: coalesce(Layout(4), (1, 1)), r"profile \(1, 1\): has more modes than 4:1"),
        (lambda: complement(Layout((2, 2), (1, 3))), r"complement of \(2,2\):\(1,3\): stride 3 is not a multiple of 2"),
    ],
)
def test_errors(call, message):
    with pytest.raises(LayoutError, match=message):
        call()


@given(st.data())
def test_unknown_kind_of_layouts(data):
    with pytest.raises(ValueError, match="kind = 'some': must be one of any, nested, bijective"):
        data.draw(layouts("some"))
