"""The table and the picture of docs/lab/fusion.md are those of the records, and every element in them was equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import unfused
from fusion import line_of
from fusion_report import WIDTH, markdown, picture, torch_markdown
from megamoe_dsl.cases import TokenInputs
from megamoe_dsl.problem import Problem
from result_archive import read_record
from unfused import Agreement, compare_kernels, mixed_batches, unequal_bits

ROOT = Path(__file__).parents[1]
NAMES = ("fusion_gain-20261122-132824", "fusion_gain-20261122-132847")


MORE = ("fusion_gain-20261122-135643", "fusion_gain-20261122-135703", "fusion_gain-20261122-135726")


FAR = ("fusion_gain-20261122-174250", "fusion_gain-20261122-174321")


def records(names: tuple[str, ...] = NAMES) -> list[dict[str, Any]]:
    return [one for name in names for one in json.loads(read_record(ROOT / "bench" / "results", name))["records"]]


def test_the_page_has_the_records_table_and_picture() -> None:
    page, found = (ROOT / "docs" / "lab" / "fusion.md").read_text(), records()
    assert markdown(found) in page and picture(found) in page
    assert len(found) == 12 and f"{sum(one['agreement']['elements'] for one in found):,} elements" in page
    more = records(MORE)
    assert markdown(more) in page and f"{sum(one['agreement']['elements'] for one in more):,} elements" in page
    right = {"unequal": 0, "launches": 200, "passed": True}
    assert all(one["agreement"] == {**one["agreement"], **right} for one in found + more)


def test_the_page_has_the_table_of_torch_alone() -> None:
    found, page = records(FAR), (ROOT / "docs" / "lab" / "fusion.md").read_text()
    assert torch_markdown(found).count("\n") == 1 + len(found) and torch_markdown(found) in page
    assert all(one["torch"]["difference"] < 0.03 for one in found), "as far as the formats are apart"
    assert torch_markdown(records()).count("\n") == 1


def test_bars_are_as_long_as_times() -> None:
    (upper, lower), record = picture(records()[:1]).splitlines(), records()[0]
    assert upper.count("=") == WIDTH
    assert len(lower.strip()) == round(WIDTH * record["gain"])
    assert {*lower.strip()} == {*"d1s2c"}


def test_a_failure_is_no_row() -> None:
    failed = {"name": "flash", "error": "no kernel"}
    assert markdown([failed]).count("\n") == 1 and picture([failed]) == ""
    assert "all" not in line_of(records()[0]) and "1,331,200 of 1,331,200 equal" in line_of(records()[0])


def test_agreement_needs_launches_and_equal_bits() -> None:
    assert Agreement(3, 12, 0).passed
    assert not Agreement(3, 12, 1).passed and not Agreement(0, 0, 0).passed
    one = torch.tensor([0.0, float("nan"), 1.0], dtype=torch.bfloat16)
    assert unequal_bits(one, one.clone()) == 0  # NaN is equal to itself here
    assert unequal_bits(one, torch.tensor([-0.0, float("nan"), 1.0], dtype=torch.bfloat16)) == 1


def test_every_element_of_every_launch_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that are stood in for: one of them is wrong in one element of its second launch."""
    batch = TokenInputs(torch.zeros(2, 4), torch.zeros(2, 1), torch.zeros(2, 2), torch.zeros(2, 2))
    monkeypatch.setattr(unfused, "synchronize", lambda: None)
    empty, zeros = torch.empty, torch.zeros
    monkeypatch.setattr(unfused.torch, "empty", lambda *shape, device, **given: empty(*shape, **given))
    monkeypatch.setattr(unfused.torch, "zeros", lambda *shape, device, **given: zeros(*shape, **given))

    class Kernel:
        def __init__(self, wrong: int) -> None:
            self.wrong, self.calls, self.buffers, self.config = wrong, 0, self, self
            self.problem, self.hidden = self, 4

        def store(self, inputs: object) -> None:
            assert inputs is not None

        def __call__(self, y: torch.Tensor) -> None:
            self.calls += 1
            y.fill_(1.0)
            if self.calls == self.wrong:
                y[1, 2] = 2.0

        def synchronize(self) -> None:
            assert self.calls

    assert compare_kernels(Kernel(0), Kernel(0), lambda number: batch, 3) == Agreement(3, 24, 0)  # type: ignore[arg-type, return-value]
    assert compare_kernels(Kernel(0), Kernel(2), lambda number: batch, 3) == Agreement(3, 24, 1)  # type: ignore[arg-type, return-value]


def test_every_launch_has_inputs_of_its_own() -> None:
    """The same for the same number; among them all slots, none, and fewer tokens than there may be."""
    problem = Problem(256, 128, 8, 2, max_tokens_per_rank=9, recipe="fp8xfp8")
    batches = mixed_batches(problem, 9, None, "cpu")
    found = [batches(number) for number in range(40)]
    assert torch.equal(batches(7).topk_idx, found[7].topk_idx) and torch.equal(batches(7).topk_weights, found[7].topk_weights)
    assert len({one.topk_weights.numpy().tobytes() for one in found if len(one.x)}) == sum(len(one.x) > 0 for one in found) >= 30
    assert {bool((one.topk_idx < 0).all()) for one in found if len(one.x)} == {False, True}
    assert any((one.topk_idx >= 0).all() for one in found) and {0, 9} < {len(one.x) for one in found}
