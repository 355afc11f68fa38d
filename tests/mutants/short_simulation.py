"""A family's short simulation in a process of its own, with the package that PYTHONPATH finds first.

    python tests/mutants/short_simulation.py KERNEL ARCH

Prints one JSON string that says what shows that the kernel is wrong, or null.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module

from first_finding import first_sign


def sign_of(kernel: str, arch: str) -> str | None:
    """The family's own sign, or the error that its compilation ended with."""
    from cutlass.base_dsl.common import DSLBaseError

    from megamoe_dsl.artifact.compile import CompileError

    try:
        return first_sign(lambda: import_module(f"{kernel}_mutants").short_simulation(arch))
    except (DSLBaseError, CompileError) as error:
        return f"compiler: {str(error).splitlines()[0]}"


if __name__ == "__main__":
    print(json.dumps(sign_of(*sys.argv[1:])))
