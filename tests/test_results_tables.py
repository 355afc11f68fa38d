"""Figures in the documents are those of the records, and of the compiler."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gemms.report import markdown as gemm_table
from megamoe_dsl.bench.point import Point
from megamoe_dsl.cli.app import app
from moe_layers.report import markdown
from result_archive import read_record
from results_table import share_table, short_table, spread_table, table
from training_tables import table as training_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"


TIMES, TRACES = ("time-20261129-131904", "time-20261129-131926"), ("trace-20261122-002058", "trace-20261122-002113")
OTHER_SHAPES = "time-20261122-163649", "time-20261122-163802", "time-20261122-165327", "time-20261122-165419"
RINGS = "time-20261122-165242", "time-20261122-165304"
EXPERTS = (
    ("20261123-152548",),
    ("20261123-152621", "20261123-142223"),
    ("20261123-033413",),
    ("20261123-024151",),
    ("20261123-024236",),
)
"""Records of a table each; points that the first lacks are of the next."""
DECODED_GEMMS = ("20261123-030449", "20261123-031028")
H100 = "time-20261122-155606", "time-20261122-155638"
TRAINING = "training-20261130-082904", "training_power-20261130-083842", "ep_training-20261129-225155"
TRAINED = ["qwen3-30b-a3b", "qwen3-next", "sonic-1536", "deepseek-v3-64"]


@pytest.mark.parametrize(
    ("page", "rows_of", "records", "lines"),
    [
        ("docs/lab/performance.md", table, TIMES, 14),
        ("docs/lab/performance.md", spread_table, TIMES, 14),
        ("docs/lab/performance.md", short_table, TIMES, 8),
        ("docs/lab/performance.md", table, OTHER_SHAPES, 26),
        ("docs/lab/performance.md", table, RINGS, 9),
        ("docs/lab/performance.md", short_table, H100, 8),
        ("docs/lab/performance.md", share_table, H100, 4),
        ("docs/lab/performance.md", spread_table, H100, 14),
        ("README.md", short_table, TIMES, 8),
        ("docs/lab/hopper.md", table, TRACES, 14),
        ("docs/lab/hopper.md", table, ("trace-20261122-163955", "trace-20261122-164005"), 5),
    ],
)
def test_page_has_the_table(page: str, rows_of: Callable[[Sequence[Path]], str], records: tuple[str, ...], lines: int) -> None:
    rows = rows_of([RESULTS / f"mega_moe_sm90-{one}.json" for one in records])
    assert len(rows.splitlines()) == lines
    assert rows in (ROOT / page).read_text()


@pytest.mark.parametrize("files", EXPERTS)
def test_page_has_the_tables_of_a_layer_on_one_gpu(files: tuple[str, ...]) -> None:
    loaded = [json.loads(read_record(RESULTS, f"experts-{one}"))["records"] for one in files]
    points = {one["point"]: one for records in reversed(loaded) for one in records}
    records = sorted(points.values(), key=lambda one: int(one["tokens"]))
    assert len(records) >= 2 and all(one["passed"] for one in records)
    page = (ROOT / "docs" / "lab" / "one_gpu.md").read_text()
    assert all(one in page for one in markdown(records).split("\n\n"))


@pytest.mark.parametrize("record", DECODED_GEMMS)
def test_page_has_the_table_of_gemms_whose_weights_are_decoded(record: str) -> None:
    rows = gemm_table(json.loads((RESULTS / f"gemm-{record}.json").read_text())["records"])
    assert len(rows.splitlines()) > 2 and rows in (ROOT / "docs" / "lab" / "gemms.md").read_text()


@pytest.mark.parametrize("record", TRAINING)
def test_page_has_the_tables_of_training(record: str) -> None:
    rows = "\n".join(training_table(json.loads(read_record(RESULTS, record))["records"], TRAINED))
    assert len(rows.splitlines()) > 5 and rows in (ROOT / "docs" / "lab" / "training.md").read_text()


@pytest.mark.parametrize("rows_of", [table, spread_table, short_table])
@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ({"preset": None, "hidden": 2048, "intermediate": 1024, "experts": 16, "topk": 4}, "H2048 I1024 E16 top4"),
        ({"preset": None, "hidden": 2048, "intermediate": 1024, "experts_per_rank": 8, "topk": 4}, "H2048 I1024 top4 El8"),
        ({"preset": "flash", "experts": 16}, "flash E16"),
        ({"preset": "pro"}, "Pro"),
    ],
)
def test_a_shape_of_ones_own_is_named(
    rows_of: Callable[[Sequence[Path]], str], shape: dict[str, int | str | None], name: str, tmp_path: Path
) -> None:
    """A record of the current files, with another shape in its point and the point's own name."""
    record = json.loads((RESULTS / f"mega_moe_sm90-{TIMES[0]}.json").read_text())["records"][0]
    point = Point(**{"tokens": 8, "ranks": 2, **shape})
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"records": [{**record, "point": asdict(point), "name": point.name}]}))
    rows = rows_of([file]).splitlines()[2:]
    assert rows and all(row.startswith((f"| {name} 8 |", f"| {name}, ")) for row in rows)


def test_page_shows_what_the_compiler_made() -> None:
    command = "inspect --preset flash --tokens 128 --block-m 64"
    page = (ROOT / "docs" / "lab" / "compiled.md").read_text()
    assert f"megamoe {command}`" in page
    lines = [line.rstrip() for line in CliRunner().invoke(app, command.split()).output.splitlines()]
    edges = ("Instructions per unit", "A tile is counted")
    first, last = (next(i for i, line in enumerate(lines) if line.startswith(text)) for text in edges)
    assert "\n".join(lines[first : last + 1]) in page


def test_page_shows_what_the_demo_prints() -> None:
    """All but times, and but the lines of the PTX: those that name lines of the source come and go with them."""

    def lines(text: str) -> list[str]:
        rows = [" ".join(re.sub(r"\b\d+\.\d+( s;|\s*$)|\b\d+ lines", "TIME", line).split()) for line in text.splitlines()]
        return [row for row in rows if row and "─" not in row]

    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    command = re.search(r"`megamoe (simulate [^`]*)`", page)
    assert command is not None
    shown = page[page.index("```\nArtifact\n") + 4 : page.index("no race found\n```")] + "no race found"
    printed = CliRunner().invoke(app, command[1].split()).output
    assert lines(printed)[-len(lines(shown)) :] == lines(shown)
