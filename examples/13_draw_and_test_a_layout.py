"""Draw the layout of an accumulator, and property-test an epilogue's arithmetic against it (docs/tutorials/first_kernel.md)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from megamoe_dsl.blocks import ColumnShare, MathThread
from megamoe_dsl.layouts import Layout


def warp_sums(columns: int) -> Layout:
    """(lane, register) of a warp -> row + 16 * column of its 16 rows: the D fragment of wgmma.m64nN (PTX ISA)."""
    return Layout(((4, 8), (2, 2, columns // 8)), ((2 * 16, 1), (16, 8, 8 * 16)))


def drawn(layout: Layout, rows: int = 8, columns: int = 8) -> str:
    """Which `lane.register` has each element of the first rows and columns."""
    holder = {layout(lane, register): f"{lane}.{register}" for lane in range(32) for register in range(layout[1].size)}
    return "\n".join(" ".join(f"{holder[row + 16 * column]:>5}" for column in range(columns)) for row in range(rows))


def place_of(me: ColumnShare, register: int) -> tuple[int, int]:
    """Token and weight row of a value, as the epilogue of examples/09_your_first_kernel.py computes them."""
    j, h, e = register // 4, register // 2 % 2, register % 2
    return 8 * j + me.pair + e, 16 * me.warp + me.row + 8 * h


@settings(deadline=None)
@given(st.integers(1, 32))
def check_every_element_has_one_place(groups: int) -> None:
    layout = warp_sums(8 * groups)
    assert layout.injective and layout.cosize == layout.size == 16 * 8 * groups


@settings(deadline=None)
@given(st.sampled_from((8, 16, 32)), st.integers(0, 31), st.data())
def check_the_epilogue(tokens: int, lane: int, data: st.DataObject) -> None:
    """Shifts and masks say what the layout says."""
    register = data.draw(st.integers(0, tokens // 2 - 1))
    token, row = place_of(ColumnShare.of(MathThread(0, 0, lane), tokens), register)
    assert warp_sums(tokens)(lane, register) == row + 16 * token


print(f"{warp_sums(8)}: the first 8 rows and columns of a warp's accumulator, by lane.register")
print(drawn(warp_sums(8)))
for check in (check_every_element_has_one_place, check_the_epilogue):
    check()
    print(f"{check.__name__}: holds")
