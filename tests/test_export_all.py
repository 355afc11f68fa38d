"""`megamoe export --all`: a folder with every kernel of a layer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.store import ArtifactStore, kernel_name
from megamoe_dsl.cli.app import app
from megamoe_dsl.cli.export import kernels_of
from megamoe_dsl.cli.options import CompiledOptions
from megamoe_dsl.kernels.kernel import KernelConfig
from megamoe_dsl.runtime.preparation import halves_kernels, layer_kernels
from megamoe_dsl.target import Target

SHAPE = ["--hidden", "256", "--intermediate", "128", "--experts", "4", "--topk", "2", "--ranks", "2", "--all"]
runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.mark.parametrize(("kernel", "kernels_of"), [("mega_moe", layer_kernels), ("dispatch_grouped_gemm", halves_kernels)])
def test_all_kernels_of_a_layer_are_exported(kernel: str, kernels_of: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def compile_ahead(kernels: list[KernelConfig], store: ArtifactStore) -> int:
        for one in kernels:
            store.save(Artifact(one, "", b"", 0.0))
        return len(kernels)

    monkeypatch.setattr("megamoe_dsl.runtime.preparation.compile_ahead", compile_ahead)
    result = runner.invoke(
        app, ["export", str(tmp_path), *SHAPE, "--arch", "sm_90a", "--sms", "5", "--kernel", kernel, "--max-tokens", "9"]
    )
    assert result.exit_code == 0 and f"MEGAMOE_CACHE_DIR={tmp_path}" in result.output
    found = set(ArtifactStore(tmp_path).configs(object))  # type: ignore[type-var]
    (problem,) = {one.problem for one in found}  # type: ignore[attr-defined]
    assert problem.max_tokens_per_rank == 9
    assert found == set(kernels_of(problem, Target.typical("sm_90a", 4)))
    assert all(kernel_name(one) in result.output for one in found)  # type: ignore[arg-type]


def test_a_layer_has_the_capacity_of_presets_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megamoe_dsl.runtime.preparation.layer_kernels", lambda problem, target: [])
    options = CompiledOptions(hidden=256, intermediate=128, experts=4, topk=2, tokens=16)
    assert [kernels_of(one)[0].max_tokens_per_rank for one in (options, replace(options, max_tokens=9))] == [8192, 9]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--name", "a"], "--name = 'a': must be left out with --all"),
        (["--block-m", "16"], "--block-m = 16: must be left out with --all"),
        (["--fields", "n=128"], "--fields = 'n=128': must be left out with --kernel mega_moe"),
        (["--kernel", "pre_dispatch"], "must be mega_moe, dispatch_grouped_gemm or grouped_gemm_combine with --all"),
    ],
)
def test_nothing_is_left_to_choose(more: list[str], message: str, tmp_path: Path) -> None:
    result = runner.invoke(app, ["export", str(tmp_path / "new"), *SHAPE, *more])
    assert result.exit_code == 2 and message in result.stderr and not (tmp_path / "new").exists()
