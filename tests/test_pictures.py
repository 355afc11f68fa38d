"""Pictures show what the plans say, in a terminal of any width and as SVG; the command that draws them."""

import xml.etree.ElementTree as ElementTree
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from megamoe_dsl.cli import app
from megamoe_dsl.kernels.mega_moe.layouts.symmetric import symmetric_buffer
from megamoe_dsl.kernels.mega_moe.layouts.workspace import workspace
from megamoe_dsl.kernels.mega_moe.sm100.config import KernelConfig
from megamoe_dsl.layouts.algebra import Layout
from megamoe_dsl.pictures import PICTURES, BarChart, Grid, render, to_svg
from megamoe_dsl.pictures.buffers import sample_counts
from megamoe_dsl.presets import preset
from megamoe_dsl.testing import configs

CONFIG = KernelConfig.choose(preset("flash").problem(256), 256)


def draw(name, config=CONFIG, tokens=256):
    return PICTURES[name](config, tokens)


def printed(picture, width=120):
    console = Console(width=width, file=StringIO())
    console.print(render(picture, width))
    return console.file.getvalue()


def svg_texts(picture):
    root = ElementTree.fromstring(to_svg(picture))
    return [element.text for element in root.iter() if element.tag.endswith("text") and element.text]


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("width", [60, 80, 160])
def test_text_fits_and_svg_is_well_formed(name, width):
    picture = draw(name)
    lines = printed(picture, width).splitlines()
    assert max(map(len, lines)) <= width
    assert picture.title in lines[0] and picture.title in svg_texts(picture)


@pytest.mark.parametrize("name", PICTURES)
@settings(max_examples=40, deadline=None)
@given(config=configs())
def test_any_configuration(name, config):
    picture = draw(name, config, config.problem.max_tokens_per_rank)
    for chart in picture.charts:
        if isinstance(chart, BarChart):
            for lane in chart.lanes:
                assert len(lane.details) == len(chart.headings)
                assert all(0 <= bar.start <= bar.end <= chart.extent for bar in lane.bars)
        else:
            assert len(chart.labels) == len(chart.rows) and all(len(row) == len(chart.headings) for row in chart.rows)
    ElementTree.fromstring(to_svg(picture))


@pytest.mark.parametrize(
    ("name", "region"),
    [("workspace", workspace(CONFIG.problem)), ("symmetric", symmetric_buffer(CONFIG.problem)), ("smem", CONFIG.smem.region)],
)
def test_every_field_is_shown(name, region):
    """Barriers are drawn as one field, and so is the workspace in the symmetric buffer."""
    summed = {p.field.name for p in workspace(CONFIG.problem)} if name == "symmetric" else set()
    fields = {p.field.name for p in region if not p.field.name.endswith("_barrier")} - summed
    text, texts = printed(draw(name), 200), svg_texts(draw(name))
    assert all(field in text and any(field in one for one in texts) for field in fields)


def test_smem_columns_are_lifetimes():
    (grid,) = draw("smem").charts
    assert isinstance(grid, Grid)
    columns = [" ".join(row[i].text for row in grid.rows) for i in range(2)]
    assert "weights" in columns[0] and "weights" not in columns[1]
    assert "combine_slots" in columns[1] and "combine_slots" not in columns[0]
    assert all("mbarriers" in column for column in columns)


def test_pool_and_schedule_agree_with_the_sample():
    counts = sample_counts(CONFIG, 256)
    pool, schedule = draw("pool").charts[0], draw("schedule").charts[0]
    assert [int(lane.details[0]) for lane in pool.lanes] == counts[: len(pool.lanes)]
    for lane, count in zip(pool.lanes, counts, strict=False):
        assert sum(bar.end - bar.start for bar in lane.bars if bar.kind == "pool") == count
    blocks = sum(-(-count // CONFIG.block_m) for count in counts) * (CONFIG.l1_n_blocks + CONFIG.l2_n_blocks)
    assert all(int(lane.details[0]) in (blocks // CONFIG.num_clusters, blocks // CONFIG.num_clusters + 1) for lane in schedule.lanes)


@settings(max_examples=100, deadline=None)
@given(config=configs(), data=st.data())
def test_a_sample_is_what_a_rank_can_receive(config, data):
    problem, tokens = config.problem, data.draw(st.integers(0, config.problem.max_tokens_per_rank))
    counts = sample_counts(config, tokens, data.draw(st.integers(0, 100)))
    assert len(counts) == problem.experts_per_rank and sum(counts) == tokens * problem.topk
    assert all(0 <= count <= tokens * problem.num_ranks for count in counts)


def test_orders_name_every_word_and_chunk_once():
    (scales,) = draw("scales").charts
    assert sorted(int(cell.text.split()[1]) for row in scales.rows for cell in row) == list(range(128))
    for grid, chunks in zip(draw("swizzle").charts, (8, 4), strict=True):
        names = [cell.text for row in grid.rows for cell in row]
        assert sorted(names) == sorted(f"{row}.{chunk}" for row in range(8) for chunk in range(chunks))
        assert "takes 1 wavefront" in grid.caption
    assert str(Layout((32, 4), (4, 1))) in scales.caption


def test_command(tmp_path):
    runner = CliRunner()
    for name in PICTURES:
        result = runner.invoke(app, ["layout", name, "--preset", "pro", "--tokens", "64"])
        assert result.exit_code == 0, result.output
    file = tmp_path / "smem.svg"
    shape = ["--hidden", "512", "--intermediate", "512", "--experts", "8", "--topk", "2", "--sms", "4"]
    result = runner.invoke(app, ["layout", "smem", *shape, "--svg", str(file)])
    assert result.exit_code == 0 and "smem.svg" in result.output and file.read_text().startswith("<?xml")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_an_encoding_without_blocks_is_one_line(encoding):
    result = CliRunner(charset=encoding).invoke(app, ["layout", "schedule"])
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr == f"error: encoding = {encoding!r}: must be one with '\\u2588'; set PYTHONIOENCODING=utf-8\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["layout", "smem", "--preset", "huge"], "one of flash, pro"),
        (["layout", "smem", "--hidden", "100", "--intermediate", "512", "--experts", "8", "--topk", "2"], "hidden = 100"),
        (["layout", "smem", "--block-m", "17"], "block_m = 17"),
        (["layout", "pool", "--svg", "missing/folder/x.svg"], "missing/folder"),
        (["layout", "nothing"], "is not one of"),
    ],
)
def test_errors_are_one_line(arguments, message):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and message in result.output and "Traceback" not in result.output
