"""bench/accuracy.py on a small layer: errors grow as formats narrow, and Hopper's sums are near exact ones; its page has every recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from accuracy import BALANCED, EXACT, HEAVY, HOPPER, NORMAL, Accuracy, accuracies
from megamoe_dsl.presets import Preset, shapes
from megamoe_dsl.recipe import RECIPES

PAGE = (Path(__file__).parents[1] / "docs" / "lab" / "accuracy.md").read_text()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], Accuracy]:
    """All of a small layer, by inputs, recipe, activation, element of results, and sums."""
    monkeypatch.setitem(shapes.PRESETS, "small", Preset("small", "a small one", "nobody/small", 256, 128, 4, 2))
    every = list(accuracies("small", 16, all_of_it=True))
    return {(one.inputs, one.recipe, one.activation, one.combine, one.sums): one for one in every}


def test_every_recipe_has_its_errors(found: dict[tuple[str, ...], Accuracy]) -> None:
    for inputs in (NORMAL, HEAVY, BALANCED):
        errors = [found[inputs, recipe, "silu", "bf16", EXACT].error for recipe in ("bf16xbf16", "mxfp8xmxfp8", "fp8xfp4", "mxf4xmxf4")]
        assert errors == sorted(errors) and errors[0] < 0.01 < errors[1] < 0.2 < errors[3] < 1
        for recipe in RECIPES:
            one = found[inputs, recipe, "silu", "bf16", EXACT]
            assert one.worst >= one.error >= 0.9 * one.own_weights and one.cosine > 0.8
            assert one.error < found[inputs, recipe, "silu", "e4m3", EXACT].error * 1.02
    near = found[NORMAL, "fp8xfp8", "silu", "bf16", HOPPER].error / found[NORMAL, "fp8xfp8", "silu", "bf16", EXACT].error
    assert 0.7 < near < 1.4


def test_the_page_has_every_recipe() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert all(sum(f"| `{recipe}` |" in row for row in rows) >= 4 for recipe in RECIPES)
