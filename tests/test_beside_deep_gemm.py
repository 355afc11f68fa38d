"""DeepGEMM's kernel beside ours, where there is no nvcc: the order of its weights, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import beside_deep_gemm
from cuda_headers import CudaHeaders
from deep_gemm_mega_moe import HEADER, DeepGemmMegaMoe
from megamoe_dsl.cases import random_case
from megamoe_dsl.problem import Problem


def test_packed_rows_alternate_by_parity(tmp_path: Path) -> None:
    """Of 16 rows of gate and 16 of up: even rows of both, then odd ones; scales follow."""
    (tmp_path / HEADER).parent.mkdir(parents=True)
    (tmp_path / HEADER).touch()
    case = random_case(Problem(512, 512, 2, 1, max_tokens_per_rank=4, recipe="mxf4xmxf4"), (1,), 0)
    kernel = DeepGemmMegaMoe(CudaHeaders(tmp_path, HEADER, tmp_path), case.problem, 32, 4)
    gate, up = case.weights[0].fc1.unflatten(1, (2, -1, 16)).unbind(1)
    wanted = torch.cat([gate[:, :, 0::2], up[:, :, 0::2], gate[:, :, 1::2], up[:, :, 1::2]], dim=2).flatten(1, 2)
    assert torch.equal(kernel.weights(case, 0)["fc1"], wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tiles", "48"], "--tiles 48: must be some of 16, 32"),
        (["--recipe", "mxf4xmxf4", "--tiles", "16"], "some of 32, 64"),
        ([], HEADER),
    ],
)
def test_what_is_refused(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["beside_deep_gemm.py", str(tmp_path), *options])
    with pytest.raises(SystemExit) as end:
        beside_deep_gemm.main()
    assert message in f"{end.value} {capsys.readouterr().err}"
