"""The runner of the baseline's own test: it finds this package by DeepGEMM's name, and kernels are those of its tables."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import baseline_test
import baseline_test_support
import megamoe_dsl.compat.deep_gemm  # noqa: F401  what the test's modules are here
from baseline_test import kernels_of, load, name_modules, scenarios
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config

TEST = '''"""from deep_gemm import nothing: a docstring."""
import sys
import deep_gemm
from deep_gemm.utils import per_token_cast_to_fp8
from deep_gemm.utils.dist import dist_print, init_dist, uneven_all_gather
from deep_gemm.testing import calc_diff, get_arch_major

def _layer1_smoke():
    return [("one", dict(num_max_tokens_per_rank=64, num_tokens=64, hidden=512, intermediate_hidden=512, num_experts=8, num_topk=2))]

def _layer4_edges(num_ranks):
    base = dict(num_max_tokens_per_rank=128, hidden=512, intermediate_hidden=512, num_experts=8 * num_ranks, num_topk=2)
    slow = dict(base, fast_math=False)
    return [("inf", dict(base, activation_clamp=float("inf"))), ("slow", slow), ("mask", dict(base, masked_ratio=1.0))]

def _layer5_stress(num_ranks, num_tests):
    raise AssertionError

if __name__ == "__main__":
    assert deep_gemm.fp8_mega_moe and per_token_cast_to_fp8 and uneven_all_gather and calc_diff
    print(deep_gemm.fp8_mega_moe.__module__, *sys.argv[1:])
    sys.exit(len(sys.argv) - 1)
'''


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "test_mega_moe_sm90.py"
    file.write_text(TEST)
    return file


def test_it_runs_in_another_process(path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert baseline_test.run(path, tmp_path, ["--num-processes", "2"]) == 2
    assert capfd.readouterr().out.split() == ["megamoe_dsl.compat.deep_gemm.calls", "--num-processes", "2"]


def test_kernels_are_those_of_its_tables(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_modules(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with patch.dict(sys.modules):
        for name in [one for one in sys.modules if one.partition(".")[0] == "deep_gemm"]:
            del sys.modules[name]
        found = list(scenarios(load(path), 2))
    assert [one["num_experts"] for one in found] == [8, 16, 16, 16] and math.isinf(found[1]["activation_clamp"])
    configs = [next(kernels_of(one, 2)) for one in found]
    assert all(isinstance(one, Sm90Config) and one.num_sms == 132 for one in configs)
    problems = [one.problem for one in configs]
    assert [(one.activation_clamp, one.fast_math) for one in problems] == [(10.0, True), (None, True), (10.0, False), (10.0, True)]


def test_arguments() -> None:
    options, rest = baseline_test.parse(["run", "x.py", "--kernels", "k", "--", "--layers", "1"])
    assert (options.what, options.path, options.kernels, rest) == ("run", Path("x.py"), Path("k"), ["--layers", "1"])


def test_differences() -> None:
    x = torch.tensor([1.0, 2.0])
    assert baseline_test_support.calc_diff(x, x) == 0.0 and baseline_test_support.calc_diff(x * 0, x * 0) == 0.0
    assert math.isclose(baseline_test_support.calc_diff(x, -x), 2.0)


def test_uneven_all_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ranks: this one, and one with a row less."""

    def all_gather(found: list[torch.Tensor], own: torch.Tensor, group: object) -> None:
        found[0].copy_(own)
        found[1].copy_(own - 1 if own.dtype == torch.long else own)

    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(dist, "all_gather", all_gather)
    x = torch.arange(6.0).view(3, 2)
    assert torch.equal(baseline_test_support.uneven_all_gather(x), torch.cat([x, x[:2]]))
    codes = x.to(torch.float8_e4m3fn)
    assert torch.equal(baseline_test_support.uneven_all_gather(codes).float(), torch.cat([x, x[:2]]))
