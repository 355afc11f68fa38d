"""A token's y has the same bits in every batch, by every way to compute it on one GPU (bench/batch_invariance.py)."""

from __future__ import annotations

import pytest

from batch_invariance import SIZES, WAYS, line_of, records_of
from gpu_options import GpuOptions
from megamoe_dsl.arch import SM90
from record_file import RecordFile

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def records(options: GpuOptions) -> RecordFile:
    return RecordFile(options.soak_out, "batch_invariance")


@pytest.mark.parametrize("name", WAYS)
def test_every_batch_gives_a_token_the_same_bits(name: str, options: GpuOptions, records: RecordFile) -> None:
    if options.arch != SM90:
        pytest.skip("of Hopper's number formats")
    for record in records_of(WAYS[name](SIZES), SIZES):
        print(line_of(record), flush=True)
        records.append(record)
    assert all(one["passed"] for one in records.records if one["promised"])
