"""The package root: type checkers know what its names are, and what runs artifacts needs no DSL."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOUR = """
from megamoe_dsl import Inputs, Problem, SimulatedMoE, Target, choose, compile_kernel, random_case

reveal_type(Problem)
problem = Problem(hidden=512, intermediate=512, num_experts=8, topk=2, num_ranks=2, max_tokens_per_rank=13)
artifact = compile_kernel(choose(problem, Target.typical("sm_100a", 4), num_tokens=13))
case = random_case(problem, tokens=[13, 7], seed=0)
inputs = [Inputs(*rank) for rank in zip(case.x, case.x_sf, case.topk_idx, case.topk_weights)]
y, report = SimulatedMoE(artifact, case.weights)(inputs)
reveal_type(report)
"""
WRONG = """
import megamoe_dsl

megamoe_dsl.Problem(hidden="512")
megamoe_dsl.Kernel
"""


CONFIG = f"""
[mypy]
strict = True
python_version = 3.11
mypy_path = {ROOT / "src"}
follow_imports = silent
ignore_missing_imports = True

[mypy-torch.*,numpy.*,cutlass.*]
follow_imports = skip
"""  # reading torch takes mypy longer than all else


def test_mypy_knows_the_types(tmp_path: Path) -> None:
    """What `mypy --strict` says of a user's files, the right one and the wrong one."""
    pytest.importorskip("mypy")
    for name, text in {"tour.py": TOUR, "wrong.py": WRONG, "mypy.ini": CONFIG}.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "tour.py", "wrong.py"]
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout
    assert 'Revealed type is "def (hidden:' in said and "megamoe_dsl.problem.Problem" in said
    assert 'Revealed type is "megamoe_dsl.sim.report.Report"' in said
    assert "tour.py" in said and not re.search(r"tour\.py.* error:", said)
    assert 'wrong.py:4: error: Argument "hidden" to "Problem" has incompatible type "str"; expected "int"' in said
    assert 'wrong.py:5: error: Module has no attribute "Kernel"' in said


WITHOUT_DSL = """
import importlib, pkgutil, sys


class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cutlass", "tvm_ffi"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Refused())
for folder in ("artifact", "runtime", "bench", "checkpoints", "compat", "predict", "tuned", "cli"):
    package = importlib.import_module(f"megamoe_dsl.{folder}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        print(importlib.import_module(module.name).__name__)
"""


def test_what_runs_artifacts_needs_no_dsl() -> None:
    """On a machine with GPUs kernels are loaded, timed and checked where the DSL is not installed."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_DSL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "megamoe_dsl.artifact.store" in done.stdout.split()
