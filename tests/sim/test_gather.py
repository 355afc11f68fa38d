"""TMA rows in any order: tile::gather4 and tile::scatter4."""

import numpy as np
import pytest
from test_tensor_copy import COPY_LOOP, SETUP, TO_GLOBAL, TO_SHARED, WAIT, Tensor, launch

from megamoe_dsl.hardware.operand_tile import Swizzle
from megamoe_dsl.sim import SimError

ROWS = (7, 0, 19, 3)


def placed(words, span):
    """Shared-memory bytes in the order of the rows."""
    return words.view(np.uint8)[Swizzle(span)(np.arange(words.nbytes) + 2048) - 2048]


def gather(tensor, column, rows, count):
    places = ", ".join(map(str, (column, *rows)))
    return f"""@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {count};
    @%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%r2], [%rd50, {{{places}}}], [%r1];"""


@pytest.mark.parametrize("span", [0, 32, 128])
def test_gather(span):
    width = span or 64
    tensor, out = Tensor((20, 256), (1, width), span=span), np.zeros(width, np.uint32)
    report = launch(SETUP + gather(tensor, 32, ROWS, 4 * width) + WAIT + COPY_LOOP.format(words=width, move=TO_GLOBAL), tensor, out)
    np.testing.assert_array_equal(placed(out, span).reshape(4, width), tensor.view[list(ROWS), 32 : 32 + width])
    assert (report.findings, dict(report.warnings)) == ([], {})


def test_rows_outside_are_zero_and_count():
    tensor, out = Tensor((20, 96), (1, 64)), np.zeros(64, np.uint32)
    body = SETUP + gather(tensor, 48, (20, 5, -1, 5), 256) + WAIT + COPY_LOOP.format(words=64, move=TO_GLOBAL)
    launch(body, tensor, out)
    row = np.concatenate([tensor.view[5, 48:], np.zeros(16, np.uint8)])
    np.testing.assert_array_equal(out.view(np.uint8).reshape(4, 64), [0 * row, row, 0 * row, row])


@pytest.mark.parametrize("span", [0, 64])
def test_scatter(span):
    tensor, data = Tensor((20, 256), (1, 64), span=span), np.arange(64, dtype=np.uint32)
    expected = tensor.view.copy()
    inside = [row for row in (7, 0, 31, 3) if row < 20]
    expected[inside, 32:96] = placed(data, span).reshape(4, 64)[[0, 1, 3]]
    store = """fence.proxy.async.shared::cta; bar.sync 0;
    @%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%rd50, {32, 7, 0, 31, 3}], [%r2];
    @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;"""
    report = launch(SETUP + COPY_LOOP.format(words=64, move=TO_SHARED) + store, tensor, data)
    np.testing.assert_array_equal(tensor.view, expected)
    assert (report.findings, dict(report.warnings)) == ([], {})


def test_the_box_must_have_one_row():
    tensor = Tensor((20, 96), (2, 64))
    with pytest.raises(SimError, match="whose box has 2 rows: must be 1"):
        launch(SETUP + gather(tensor, 0, ROWS, 256), tensor, np.zeros(1, np.uint32))


def test_gather_takes_five_coordinates():
    tensor = Tensor((20, 96), (1, 64))
    with pytest.raises(SimError, match="4 coordinates"):
        launch(SETUP + gather(tensor, 0, (1, 2, 3), 256), tensor, np.zeros(1, np.uint32))
