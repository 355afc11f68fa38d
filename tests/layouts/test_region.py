"""Region algebra on random regions: placement, element offsets, torch views, traced offsets, errors."""

import os
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_properties import check_offsets, check_region, check_views, coexist

from megamoe_dsl.layouts.region import BF16, E4M3, F32, I32, I64, U8, U32, U64, Field, Placement, Region, most_that_fit

RECIPES = (U8, E4M3, BF16, U32, I32, F32, U64, I64)


@st.composite
def regions(draw, depth=2):
    """Stacks of fields, stacks and overlays.  Shrinks to a stack of one scalar byte."""
    names = count()

    def field():
        dtype = draw(st.sampled_from(RECIPES))
        shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        alignment = draw(st.sampled_from((0, *(n for n in (1, 2, 4, 8, 16, 128, 1024) if n % dtype.itemsize == 0))))
        return Field(f"f{next(names)}", shape, dtype, alignment)

    def stack(depth):
        return Region.stack(f"r{next(names)}", *(part(depth) for _ in range(draw(st.integers(1, 4)))))

    def part(depth):
        kind = draw(st.integers(0, 4)) if depth else 0
        if kind < 3:
            return field()
        if kind == 3:
            return stack(depth - 1)
        return Region.overlay(f"o{next(names)}", **{f"a{i}": stack(depth - 1) for i in range(draw(st.integers(1, 3)))})

    return stack(depth)


@settings(max_examples=80)
@given(regions())
def test_random_regions(region):
    check_region(region)
    for placement in region:
        check_offsets(region, placement.field.name)
    check_views(region)


@settings(max_examples=80)
@given(regions(), st.data())
def test_traced_offset_equals_host_offset(cutlass, region, data):
    placement = data.draw(st.sampled_from(region.placements))
    name, shape = placement.field.name, placement.field.shape
    if 0 in shape:
        shape = ()
    index = [data.draw(st.integers(0, n - 1)) for n in shape[: data.draw(st.integers(0, len(shape)))]]
    traced = [data.draw(st.sampled_from((int, cutlass.Int32)))(i) for i in index]
    assert int(region.offset(name, *traced)) == int(region.offset(name, *traced, widen=True)) == region.offset(name, *index)
    for base in (cutlass.Int64(1 << 40), cutlass.Int32(1 << 20)):
        address = region.address(base, name, *traced)
        assert type(address) is type(base) and int(address) == region.address(int(base), name, *index)


@pytest.fixture(scope="module")
def cutlass():
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
    import cutlass

    return cutlass


def test_wide_offsets_and_global_addresses_do_not_wrap_at_32_bits(cutlass):
    region = Region.stack("large", Field("rows", (5, 1 << 20, 1 << 12), U8))
    index, expected = (cutlass.Int32(4), cutlass.Int32((1 << 20) - 1), 7), (5 << 32) - (1 << 12) + 7
    assert int(region.offset("rows", *index, widen=True)) == expected
    assert int(region.address(cutlass.Int64(3), "rows", *index)) == expected + 3


@settings(max_examples=80)
@given(regions(), st.binary(min_size=1, max_size=64))
def test_views_share_memory_with_the_buffer(region, pattern):
    buffer = torch.zeros(region.size + 16, dtype=torch.uint8)
    for placement in region:
        view = region.view(buffer, placement.field.name)
        data = torch.tensor(list(pattern * (placement.field.num_bytes // len(pattern) + 1))[: placement.field.num_bytes], dtype=torch.uint8)
        view.view(-1).view(torch.uint8).copy_(data) if view.numel() else None
        assert torch.equal(buffer[placement.offset : placement.end], data)


def test_stack_places_at_the_next_multiple_of_the_alignment():
    inner = Region.stack("inner", Field("b", (3,), U8), Field("c", (1,), U64))
    region = Region.stack("outer", Field("a", (1,), U8), inner, Field("d", (2,), BF16, 16), Field("e", (), U8))
    assert {p.field.name: p.offset for p in region} == {"a": 0, "b": 8, "c": 16, "d": 32, "e": 36}
    assert (region.size, region.alignment) == (48, 16)


def test_overlay_shares_bytes_between_its_alternatives():
    first = Region.stack("first", Field("a", (10,), U8), Field("b", (1,), U32))
    second = Region.stack("second", Field("c", (3,), U64))
    region = Region.stack("r", Region.overlay("phase", main=first, combine=second), Field("d", (1,), U8))
    assert {p.field.name: p.offset for p in region} == {"a": 0, "b": 12, "c": 0, "d": 24}
    assert region["a"].lifetimes == (("phase", "main"),) and region["d"].lifetimes == ()
    assert coexist(region["a"], region["b"]) and coexist(region["a"], region["d"]) and not coexist(region["a"], region["c"])


def test_nested_overlays_coexist_by_their_outermost_difference():
    def leaf(name):
        return Region.stack(name, Field(name, (4,), U8))

    inner = Region.overlay("inner", p=leaf("p"), q=leaf("q"))
    region = Region.overlay("outer", x=Region.stack("x", inner, leaf("beside")), y=leaf("y"))
    assert not coexist(region["p"], region["q"])
    assert coexist(region["p"], region["beside"])
    assert not coexist(region["p"], region["y"]) and not coexist(region["beside"], region["y"])


def test_one_overlay_name_may_not_nest_in_itself():
    inner = Region.overlay("phase", a=Region.stack("a", Field("a", (1,), U8)))
    with pytest.raises(ValueError, match="phase: an overlay of this name lies inside"):
        Region.overlay("phase", b=inner)


def test_contains_iter_and_unknown_fields():
    region = Region.stack("words", Field("a", (1,), U8), Field("b", (1,), U8))
    assert "a" in region and "c" not in region and [p.field.name for p in region] == ["a", "b"]
    for call in (region.__getitem__, region.offset, lambda name: region.view(torch.zeros(2, dtype=torch.uint8), name)):
        with pytest.raises(KeyError, match="words has no field 'c'; it has a, b"):
            call("c")


@pytest.mark.parametrize(
    ("shape", "alignment", "message"),
    [
        ((-1,), 0, r"f.shape = \(-1,\): must be non-negative integers"),
        ((2.0,), 0, r"f.shape = \(2.0,\)"),
        ((1,), 12, r"f.align = 12: must be a power of two and a multiple of 4"),
        ((1,), 2, r"f.align = 2: must be a power of two and a multiple of 4"),
        ((1,), -4, r"f.align = -4: must be a power of two"),
    ],
)
def test_field_errors(shape, alignment, message):
    with pytest.raises(ValueError, match=message):
        Field("f", shape, U32, alignment)


def test_a_name_is_declared_once():
    with pytest.raises(ValueError, match="outer: field 'a' is declared twice"):
        Region.stack("outer", Field("a", (1,), U8), Region.stack("inner", Field("a", (2,), U8)))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ((4,), r"f index 0 = 4: must be in \[0, 4\)"),
        ((0, -1), r"f index 1 = -1: must be in \[0, 3\)"),
        ((0, 0, 0), "f has 2 dimensions, got 3"),
    ],
)
def test_index_errors(index, message):
    with pytest.raises(IndexError, match=message):
        Region.stack("r", Field("f", (4, 3), U32)).offset("f", *index)


@pytest.mark.parametrize(
    "buffer",
    [
        torch.zeros(11, dtype=torch.uint8),
        torch.zeros(12, dtype=torch.int8),
        torch.zeros(3, 4, dtype=torch.uint8),
        torch.zeros(24, dtype=torch.uint8)[::2],
    ],
    ids=["short", "dtype", "rank", "strided"],
)
def test_view_errors(buffer):
    with pytest.raises(ValueError, match="must be a contiguous 1-D uint8 tensor of at least 12 bytes"):
        Region.stack("r", Field("f", (3,), U32)).view(buffer, "f")


def test_placement_end():
    assert Placement(Field("f", (3, 5), U32), 8).end == 68


@pytest.mark.parametrize("second", [40, 100, 250])
def test_most_that_fit_is_found_where_the_second_takes_less_or_more_than_others(second):
    def num_bytes(number):
        return 100 * number - (100 - second if number > 1 else 0)

    for capacity in range(0, 800, 10):
        assert most_that_fit(num_bytes, capacity) == sum(num_bytes(number) <= capacity for number in range(1, 20))
