"""What the compiler makes of every role, against committed figures: a worse kernel fails here without a GPU.  One compilation gives the
figures and the digest of the PTX, which line info does not change.

`make golden` takes the present figures, for a commit that says why they changed.
"""

import json
import os

import golden_figures as figures
import ptx_digests
import pytest

from chip_fit import assert_fits
from megamoe_dsl.arch import SMEM_BYTES
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.compile import compile_kernel
from sweep import rarely

UPDATE = "MEGAMOE_UPDATE_GOLDEN"
Case = tuple[str, str, int]
CASES = [case if case in figures.USUAL else rarely(case) for case in figures.CASES]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case)))
def case(request: pytest.FixtureRequest) -> Case:
    """Architecture, preset, tokens of a tile."""
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def artifact(case: Case) -> Artifact:
    return compile_kernel(figures.config_of(*case), line_info=True)


def test_figures_are_those_committed(case: Case, artifact: Artifact) -> None:
    present = figures.measure(artifact)
    if os.environ.get(UPDATE):
        figures.path_of(*case).write_text(json.dumps(present, indent=1) + "\n")
    changes = figures.explain(figures.read(*case), present)
    if changes:
        arch, preset, block_m = case
        pytest.fail(f"{arch}, {preset}, {block_m} tokens a tile: committed -> present (make golden)\n{changes}", pytrace=False)


def test_instructions_are_those_committed(case: Case, artifact: Artifact) -> None:
    ptx_digests.check(figures.path_of(*case).stem, artifact)


def test_it_fits_the_chip(case: Case, artifact: Artifact) -> None:
    assert_fits(artifact, figures.config_of(*case), SMEM_BYTES)


def test_every_file_belongs_to_a_configuration() -> None:
    assert {path.name for path in figures.FOLDER.glob("*.json")} == {figures.path_of(*case).name for case in figures.CASES}


def test_a_difference_reads_well() -> None:
    before = {"measures": {"mma_k_block": {"instructions": 50.0, "kinds": {"integer": 40}}}}
    after = {"measures": {"mma_k_block": {"instructions": 53.0, "kinds": {"integer": 40}}}}
    assert figures.explain(before, after).split() == ["measures.mma_k_block.instructions", "50.0", "->", "53.0", "(+3)"]
    assert figures.explain(before, before) == ""
