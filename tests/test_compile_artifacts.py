"""Kernels compiled for other machines (bench/compile_artifacts.py): which, and what is refused."""

import sys

import pytest

import compile_artifacts
from megamoe_dsl.bench.point import Point


def test_every_valid_combination_of_settings_once(capsys: pytest.CaptureFixture[str]) -> None:
    found = compile_artifacts.variants(Point("flash", 64, 8), {"block_m": [32, 33], "num_stages": [0, 3, 5], "trace": [1]})
    assert [(one.block_m, one.num_stages, one.trace) for one in found] == [(32, 5, True), (32, 3, True)]
    assert "flash EP8 M=64: left out: block_m = 33" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["swap_ab=0", "num_sms", "num_sms=", "block_m=8,x", "problem=1"])
def test_other_settings_are_one_line(text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["compile_artifacts.py", "folder", "--set", text])
    with pytest.raises(SystemExit) as refused:
        compile_artifacts.main()
    assert refused.value.code == 2
    assert f"--set {text!r}: must be FIELD=NUMBER[,NUMBER...] with a field among block_m, " in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused_before_compiling(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compile_artifacts.py", __file__, "--preset", "flash", "--tokens", "8"])
    with pytest.raises(SystemExit) as refused:
        compile_artifacts.main()
    assert refused.value.code == 2
    assert f"folder = {__file__!r}: must be a folder that can be written (" in capsys.readouterr().err
