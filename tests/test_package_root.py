"""What runs artifacts needs no DSL."""

import subprocess
import sys

WITHOUT_DSL = """
import importlib, pkgutil, sys


class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cutlass", "tvm_ffi"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Refused())
for folder in ("artifact", "runtime", "bench", "checkpoints", "compat", "tuned", "cli"):
    package = importlib.import_module(f"megamoe_dsl.{folder}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        print(importlib.import_module(module.name).__name__)
"""


def test_what_runs_artifacts_needs_no_dsl() -> None:
    """On a machine with GPUs kernels are loaded, timed and checked where the DSL is not installed."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_DSL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "megamoe_dsl.artifact.store" in done.stdout.split()
