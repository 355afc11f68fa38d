"""The runner of the baseline's own test: import lines and nothing else change, kernels are those of its tables."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import baseline_test
import baseline_test_support
from baseline_test import UnknownImportError, kernels_of, load, placed, rewritten, scenarios
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
    print(deep_gemm.__name__, *sys.argv[1:])
    sys.exit(len(sys.argv) - 1)
'''


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "test_mega_moe_sm90.py"
    file.write_text(TEST)
    return file


def test_import_lines_and_nothing_else_change() -> None:
    before, after = TEST.splitlines(), rewritten(TEST).splitlines()
    changed = [number for number, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert changed == [2, 3, 4, 5]
    assert after[4] == "from baseline_test_support import dist_print, init_dist, uneven_all_gather"


@pytest.mark.parametrize("line", ["import deep_gemm.legacy", "from deep_gemm.legacy import x", "import deep_gemm as dg"])
def test_other_imports_are_refused(line: str) -> None:
    with pytest.raises(UnknownImportError, match=f"line 2: '{line}' must be one of import deep_gemm"):
        rewritten(f"import sys\n{line}\n")


def test_it_runs_in_a_process_of_its_own(path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert baseline_test.run(path, tmp_path, ["--num-processes", "2"]) == 2
    assert capfd.readouterr().out.split() == ["megamoe_dsl.compat.deep_gemm", "--num-processes", "2"]


def test_kernels_are_those_of_its_tables(path: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    found = list(scenarios(load(placed(path, tmp_path / "copy")), 2))
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
