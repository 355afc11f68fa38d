"""What the compiler makes of every role, against committed figures: a worse kernel fails here without a GPU.

`make golden` takes the present figures, for a commit that says why they changed.
"""

import json
import os

import golden_figures as figures
import pytest

UPDATE = "MEGAMOE_UPDATE_GOLDEN"


@pytest.mark.parametrize(("arch", "preset", "block_m"), figures.CASES)
def test_figures_are_those_committed(arch: str, preset: str, block_m: int) -> None:
    present = figures.measure(arch, preset, block_m)
    if os.environ.get(UPDATE):
        figures.path_of(arch, preset, block_m).write_text(json.dumps(present, indent=1) + "\n")
    changes = figures.explain(figures.read(arch, preset, block_m), present)
    if changes:
        pytest.fail(f"{arch}, {preset}, {block_m} tokens a tile: committed -> present (make golden)\n{changes}", pytrace=False)


def test_every_file_belongs_to_a_configuration() -> None:
    assert {path.name for path in figures.FOLDER.glob("*.json")} == {figures.path_of(*case).name for case in figures.CASES}


def test_a_difference_reads_well() -> None:
    before = {"measures": {"mma_k_block": {"instructions": 50.0, "kinds": {"integer": 40}}}}
    after = {"measures": {"mma_k_block": {"instructions": 53.0, "kinds": {"integer": 40}}}}
    assert figures.explain(before, after).split() == ["measures.mma_k_block.instructions", "50.0", "->", "53.0", "(+3)"]
    assert figures.explain(before, before) == ""
