"""A machine with GPUs needs neither the DSL nor the command line's packages."""

import subprocess
import sys

ABSENT = "cutlass", "typer", "rich", "hypothesis", "filelock"
SCRIPT = f"""
import sys
for name in {ABSENT!r}:
    sys.modules[name] = None
import megamoe_dsl.bench.session, megamoe_dsl.bench.ep, megamoe_dsl.bench.gemm.session, megamoe_dsl.runtime.layer
"""


def test_runtime_and_benchmark_import_without_the_dsl() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
