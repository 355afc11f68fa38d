"""What FlashInfer's kernels run on, and the reference with their numerics; their kernels are in nobody's package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import beside_flashinfer
from beside_flashinfer import GATE_UP, distance, drawn, reference
from megamoe_dsl.reference import mega_moe_stages


@pytest.mark.parametrize("recipe", GATE_UP)
def test_full_tiles_are_full_and_y_is_finite(recipe: str) -> None:
    assert drawn(recipe, 9, full=True).topk_idx[0].flatten().bincount().tolist() == [256] * 8
    assert reference(recipe, drawn(recipe, 9, full=False)).float().norm() > 1


@pytest.mark.parametrize("recipe", GATE_UP)
def test_gate_and_up_in_fp32_are_near_our_numerics(recipe: str) -> None:
    inputs = drawn(recipe, 32, full=False)
    assert 0 < distance(mega_moe_stages(inputs).y[0], reference(recipe, inputs)) < 0.02


def test_a_folder_without_their_kernels_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["beside_flashinfer.py", str(tmp_path)])
    with pytest.raises(SystemExit):
        beside_flashinfer.main()
    assert f"{tmp_path} has no folder flashinfer/moe_ep/kernel_src" in capsys.readouterr().err
