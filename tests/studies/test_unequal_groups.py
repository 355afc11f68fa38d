"""The study of unequal groups (studies/unequal_groups.py): points and kernels are those of the committed record, the page has its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import unequal_groups
from megamoe_dsl.bench.gemm.session import variant

ROOT = Path(unequal_groups.__file__).parents[1]
RECORDS: list[dict[str, Any]] = json.loads((ROOT / "bench/results/gemm-20261122-174938.json").read_text())["records"]


def test_points_are_those_of_the_record() -> None:
    assert [(one.name, list(one.counts)) for one in unequal_groups.points()] == [(one["name"], one["counts"]) for one in RECORDS]


def test_kernels_are_those_of_the_record() -> None:
    for point, record in zip(unequal_groups.points(), RECORDS, strict=True):
        timed = {one["kernel"] for one in record["kernels"] if one["config"]}
        assert {variant(config) for config in unequal_groups.configs_of(point.problem)} == timed


def test_the_page_has_its_table() -> None:
    assert unequal_groups.markdown(RECORDS) in (ROOT / "docs/gemm.md").read_text()
