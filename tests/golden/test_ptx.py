"""Compiled instructions are those that were committed: what is meant to move code around must not change a kernel.

A commit that changes a kernel on purpose takes new digests (`make golden`) and says so.
"""

import golden_figures as figures
import ptx_digests
import pytest

from megamoe_dsl.artifact.compile import compile_kernel
from sweep import rarely

WITH_FIGURES = {figures.path_of(*case).stem for case in figures.USUAL}
"""What test_golden.py compiles, with its digests."""


@pytest.mark.parametrize(
    "name", [rarely(name) if name in ptx_digests.RARELY else name for name in ptx_digests.CASES if name not in WITH_FIGURES]
)
def test_traced_operations_are_those_committed(name: str) -> None:
    ptx_digests.check_operations(name)


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name in ptx_digests.CASES if name not in WITH_FIGURES])
def test_instructions_are_those_committed(name: str) -> None:
    ptx_digests.check(name, compile_kernel(ptx_digests.CASES[name]()))


@pytest.mark.sweep
@pytest.mark.parametrize("name", ptx_digests.CASES)
def test_loops_of_roles_are_found(name: str) -> None:
    """Raises `InspectionError` where a family's measures name a loop that the code lacks."""
    artifact = compile_kernel(ptx_digests.CASES[name](), line_info=True)
    assert all(one.instructions > 0 for one in artifact.measures)


def test_every_digest_belongs_to_a_configuration() -> None:
    assert list(ptx_digests.read()) == list(ptx_digests.CASES) and ptx_digests.CASES.keys() >= ptx_digests.RARELY
