"""The algebra against CuTe's own: static layouts evaluated by the DSL, as when it traces.  No GPU, no compiled code.

Where both are defined they agree leaf by leaf (strides of extent-1 leaves aside).  They differ in what they refuse: CuTe computes some
compositions and complements that do not have the defining property, which the tests show by enumeration; the algebra raises there.
CuTe's divide and product of such operands can end the process (a division by zero), so CuTe is only asked where the algebra has an answer.
"""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layout_algebra as algebra
from drawn_layouts import layouts
from layout_algebra import join
from megamoe_dsl.hardware.operand_tile import CHUNK, Swizzle
from megamoe_dsl.layouts.layout import Layout, LayoutError, flatten, idx2crd, unflatten

POWERS = (1, 2, 4, 8)
EXAMPLES = settings(max_examples=80)
pairs = st.one_of(
    st.tuples(layouts(), layouts("nested", max_size=32)),
    st.tuples(layouts("nested", extents=POWERS), layouts("nested", extents=POWERS, max_size=32)),
    st.tuples(layouts("nested"), layouts("nested", max_size=32)),
    st.tuples(layouts(), layouts(max_size=32)),
)


class Cute:
    """CuTe's operations on our layouts; None where CuTe refuses or answers with what is no layout."""

    def __init__(self, module, refusal):
        self.module, self.refusal = module, refusal

    def layout(self, layout):
        return self.module.make_layout(layout.shape, stride=layout.stride)

    def __call__(self, name, *operands):
        convert = [self.layout(x) if isinstance(x, Layout) else x for x in operands]
        try:
            result = getattr(self.module, name)(*convert)
            return Layout(result.shape, result.stride)
        except (self.refusal, LayoutError):
            return None


@pytest.fixture(scope="module")
def trace():
    """The result of a function of `Cute`, whose operations go into a module that nobody compiles."""
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
    import cutlass.cute as cute
    from cutlass._mlir import ir

    with ir.Context() as context, ir.Location.unknown() as location:
        module = ir.Module.create()

    def run(work):
        with context, location, ir.InsertionPoint(module.body):
            return work(Cute(cute, ir.MLIRError))

    return run


def ours(name, *operands):
    try:
        return getattr(algebra, name)(*operands)
    except LayoutError:
        return None


def canonical(layout):
    """Extent-1 leaves have stride 0."""
    return Layout(layout.shape, unflatten([d if n > 1 else 0 for n, d in layout.leaves], layout.shape))


def check(trace, *calls):
    """Equal where the algebra has an answer and CuTe does not refuse; one trace for all (name, operands)."""
    answered = [(call, expected) for call in calls if (expected := ours(*call)) is not None]
    results = trace(lambda cute: [cute(*call) for call, _ in answered])
    for (call, expected), theirs in zip(answered, results, strict=True):
        assert theirs is None or canonical(theirs) == canonical(expected), call


@EXAMPLES
@given(layouts(max_size=24))
def test_sizes_and_indices(trace, layout):
    coordinates = [idx2crd(i, layout.shape) for i in range(layout.size)]

    def evaluate(cute):
        theirs, module = cute.layout(layout), cute.module
        indices = [module.crd2idx(c, theirs) for c in coordinates]
        flat = [module.crd2idx(i, theirs) for i in range(layout.size)]
        return module.size(theirs), module.cosize(theirs), indices, flat, [module.idx2crd(i, layout.shape) for i in range(layout.size)]

    size, cosize, indices, flat, theirs = trace(evaluate)
    assert (size, cosize) == (layout.size, layout.cosize)
    assert indices == flat == layout.indices() and theirs == coordinates


@EXAMPLES
@given(st.one_of(layouts("nested"), layouts()))
def test_coalesce_and_inverses(trace, layout):
    """A layout that repeats indices has several right inverses."""
    inverses = [("right_inverse", layout)] if layout.injective else []
    check(trace, ("coalesce", layout), *inverses)


@EXAMPLES
@given(st.one_of(layouts("nested"), layouts()), st.integers(1, 200))
def test_complement(trace, layout, cosize):
    """What the algebra refuses, CuTe answers with a layout that does not complete, or not injectively."""
    expected, theirs = ours("complement", layout, cosize), trace(lambda cute: cute("complement", layout, cosize))
    if expected is not None:
        assert canonical(theirs) == canonical(expected)
    elif theirs is not None:
        visible = [(n, d) for n, d in layout.leaves if d]
        both = join(Layout(tuple(n for n, _ in visible), tuple(d for _, d in visible)), theirs).indices()
        assert len(set(both)) < len(both) or set(both) != set(range(max(both) + 1))


@EXAMPLES
@given(pairs)
def test_composition(trace, pair):
    """What the algebra refuses, CuTe refuses too or answers with a layout that is not a(b(c))."""
    a, b = pair
    expected, theirs = ours("composition", a, b), trace(lambda cute: cute("composition", a, b))
    values = [a(i) for i in b.indices()]
    if expected is None:
        assert theirs is None or theirs.indices() != values
    else:
        assert expected.indices() == values
        assert theirs is None or canonical(theirs) == canonical(expected)


def test_a_composition_that_cute_gets_wrong(trace):
    """4:3 after (4,4):(47,22): the third value is a(6) = 2 * 47 + 22, CuTe's layout says 22."""
    a, b = Layout((4, 4), (47, 22)), Layout(4, 3)
    theirs = trace(lambda cute: cute("composition", a, b))
    assert str(theirs) == "(2,2):(141,22)" and a(b(2)) == 116 and theirs(2) == 22
    with pytest.raises(LayoutError, match="a step of 3 over 4 places does not divide a mode of 4"):
        algebra.composition(a, b)


@EXAMPLES
@given(pairs)
def test_divide_and_product(trace, pair):
    check(trace, *((name, *pair) for name in ("logical_divide", "logical_product")))


@EXAMPLES
@given(layouts(extents=POWERS, max_size=32), layouts(extents=POWERS, max_size=32), st.sampled_from(POWERS), st.sampled_from(POWERS))
def test_by_mode(trace, a, b, m, n):
    """With fewer tilers than modes CuTe's division keeps the other modes, its composition drops them; ours keeps them in both."""
    both, compact = join(a, b), Layout((m, n, 3))
    calls = [(name, both, (m, n)) for name in ("composition", "logical_divide")]
    calls += [("logical_divide", both, (m,))]
    check(trace, *calls, ("logical_divide", compact, (2, 2)))


@EXAMPLES
@given(
    layouts(extents=POWERS, max_size=32),
    st.integers(0, 3),
    st.integers(0, 64),
    layouts("bijective", extents=POWERS),
)
def test_swizzled_layouts(trace, layout, bits, offset, tile):
    swizzle = Swizzle(CHUNK << bits if bits else 0)
    mine = algebra.swizzled(swizzle, layout, offset)

    def evaluate(cute):
        module = cute.module
        theirs = module.make_composed_layout(module.make_swizzle(bits, 4, 3), offset, cute.layout(layout))
        part = module.composition(theirs, cute.layout(tile)) if tile.size <= layout.size else None
        return [theirs(idx2crd(i, layout.shape)) for i in range(layout.size)], part and [part(i) for i in range(tile.size)]

    whole, part = trace(evaluate)
    assert whole == mine.indices()
    assert part is None or part == algebra.composition(mine, tile).indices()


def test_flatten_order(trace):
    """CuTe prints and flattens left to right, as the algebra does."""
    layout = Layout(((2, 3), (4, (5, 6))))
    assert trace(lambda cute: str(cute.layout(layout))) == str(layout)
    assert trace(lambda cute: cute.module.flatten_to_tuple(layout.shape)) == flatten(layout.shape)
