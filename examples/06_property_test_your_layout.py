"""Property-test a layout of your own with the published strategies; a wrong one shrinks to its smallest failure."""

from hypothesis import given, settings
from hypothesis import strategies as st

from megamoe_dsl import MegaMoeConfig
from megamoe_dsl.layouts import U8, Field, Layout, Region
from megamoe_dsl.testing import configs


def my_buffer(config: MegaMoeConfig) -> Region:
    """A staging buffer: one tile per epilogue warp, 128-byte aligned."""
    tile = Field("tile", (config.epilogue_warps, config.block_m * 128), U8, 128)
    return Region.stack("mine", Field("flags", (config.problem.experts_per_rank,), U8), tile)


def my_padded_rows(rows: int, width: int, padding: int) -> Layout:
    """Row-major rows with `padding` elements after each."""
    return Layout((rows, width), (width + padding, 1))


@settings(max_examples=200, deadline=None)
@given(configs())
def check_buffer(config: MegaMoeConfig) -> None:
    """In bounds and aligned, for every valid configuration."""
    region = my_buffer(config)
    for warp in range(config.epilogue_warps):
        offset = region.offset("tile", warp)
        assert offset % 128 == 0 and offset + config.block_m * 128 <= region.size


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 16), st.integers(1, 16), st.integers(0, 8))
def check_rows(rows: int, width: int, padding: int) -> None:
    """No two elements share a place, and what the rows leave out is exactly the padding."""
    layout = my_padded_rows(rows, width, padding)
    assert layout.injective and layout.cosize == rows * width + (rows - 1) * padding


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(st.integers(1, 64), st.integers(1, 64))
def check_a_wrong_claim(rows: int, width: int) -> None:
    """Claims that the transposed tile has the same order: false from 2 x 2 on."""
    assert Layout((rows, width), (width, 1)).indices() == Layout((rows, width)).indices(), f"rows={rows}, width={width}"


for check in (check_buffer, check_rows):
    check()
    print(f"{check.__name__}: holds for 200 random examples")

try:
    check_a_wrong_claim()
except AssertionError as error:
    print(f"check_a_wrong_claim: fails, smallest case {str(error).splitlines()[0]}")
