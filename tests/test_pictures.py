"""Pictures show what the plans say, for both architectures, in a terminal of any width and as SVG."""

import xml.etree.ElementTree as ElementTree
from io import StringIO
from itertools import combinations, pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rich.console import Console

from megamoe_dsl import Problem, Target, choose
from megamoe_dsl.arch import SMEM_BYTES
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.layouts.symmetric import symmetric_buffer, workspace
from megamoe_dsl.layouts.layout import Layout
from megamoe_dsl.pictures import PICTURES, BarChart, render, to_svg
from megamoe_dsl.pictures.chart import PAPER, STYLES, Bar, style, terminal_color
from megamoe_dsl.pictures.memory import EXPERTS, in_bytes, parted_lane, sample_counts
from megamoe_dsl.pictures.orders import TILES
from megamoe_dsl.pictures.svg import CHARACTER
from megamoe_dsl.presets import preset
from megamoe_dsl.testing import configs_sm90, configs_sm100

SM100 = choose(preset("flash").problem(256), Target.typical("sm_100a"), 256)
SM90 = choose(preset("flash").problem(256, recipe="fp8xfp8"), Target.typical("sm_90a"), 256)
SM90_PAIRS = choose(preset("pro").problem(8192, recipe="fp8xfp8"), Target.typical("sm_90a"), 8192, cluster=2)
BOTH = pytest.mark.parametrize("config", [SM100, SM90], ids=["sm100", "sm90"])
ONLY_SM100 = {"tmem", "scales"}
DRAWN = [(name, config) for config in (SM100, SM90) for name in PICTURES if config is SM100 or name not in ONLY_SM100]
EACH = pytest.mark.parametrize(("name", "config"), DRAWN, ids=[f"{name}-{config.arch}" for name, config in DRAWN])


def draw(name, config=SM100, tokens=256):
    return PICTURES[name](config, tokens)


def printed(picture, width=120):
    console = Console(width=width, file=StringIO())
    console.print(render(picture, width))
    return console.file.getvalue()


def elements(picture, tag=""):
    """Of the SVG's content, without what patterns are made of; all, or those of a tag."""
    root = ElementTree.fromstring(to_svg(picture))
    content = next(one for one in root if one.tag.endswith("}g"))
    return [one for one in content.iter() if one.tag.endswith(tag)]


def svg_texts(picture):
    return [one.text for one in elements(picture, "}text") if one.text]


@EACH
@pytest.mark.parametrize("width", [60, 80, 160])
def test_text_fits_and_svg_is_well_formed(name, config, width):
    picture = draw(name, config)
    lines = printed(picture, width).splitlines()
    assert max(map(len, lines)) <= width
    assert picture.title in lines[0] and picture.title in svg_texts(picture)


@EACH
@settings(max_examples=20)
@given(data=st.data())
def test_any_configuration(name, config, data):
    config = data.draw(configs_sm100(max_sms=16) if config is SM100 else configs_sm90(max_sms=8))
    assume(name != "scales" or config.problem.formats.scaled)
    picture = draw(name, config, min(config.problem.max_tokens_per_rank, 64))
    for chart in picture.charts:
        if isinstance(chart, BarChart):
            for lane in chart.lanes:
                assert len(lane.details) == len(chart.headings)
                assert all(0 <= bar.start <= bar.end <= chart.extent for bar in lane.bars)
        else:
            assert len(chart.labels) == len(chart.rows) and all(len(row) == len(chart.headings) for row in chart.rows)
    ElementTree.fromstring(to_svg(picture))
    assert printed(picture)


@pytest.mark.parametrize("name", sorted(ONLY_SM100))
def test_what_sm90_does_not_have_is_an_error(name):
    with pytest.raises(ConfigError, match=f"arch = 'sm_90a': must be sm_100a for a picture of {name}: .*sm_90a"):
        draw(name, SM90)


@BOTH
@pytest.mark.parametrize("name", ["workspace", "symmetric", "smem"])
def test_every_field_is_shown(name, config):
    """Barriers are drawn as one field, and so is the workspace in the symmetric buffer."""
    control = workspace(config.problem, config.arch)
    region = {"workspace": control, "symmetric": symmetric_buffer(config.problem, config.arch), "smem": config.smem.region}[name]
    summed = {p.field.name for p in control} if name == "symmetric" else set()
    fields = {p.field.name for p in region if not p.field.name.endswith("_barrier") and p.field.num_bytes} - summed
    text, texts = printed(draw(name, config), 200), svg_texts(draw(name, config))
    assert all(field in text and field in texts for field in fields)


# --- shared memory
def lanes_of(chart):
    """By group, then by name."""
    found = {}
    for lane in chart.lanes:
        found.setdefault(lane.group, {})[lane.name] = lane
    return found


@BOTH
def test_smem_is_to_scale_and_offsets_are_where_fields_begin(config):
    (chart,) = draw("smem", config).charts
    lanes = {lane.name: lane for lane in chart.lanes}
    assert chart.extent == SMEM_BYTES
    for place in config.smem.region:
        if place.field.name.endswith("_barrier") or not place.field.num_bytes:
            continue
        lane = lanes[place.field.name]
        assert (lane.bars[0].start, lane.bars[-1].end) == (place.offset, place.end)
        assert lane.details[0] == f"{place.offset:,}"
        assert all(left.end == right.start for left, right in pairwise(lane.bars))


@BOTH
def test_smem_lanes_are_lifetimes_and_all_bytes_are_named(config):
    (chart,) = draw("smem", config).charts
    groups = lanes_of(chart)
    before, during, always = (groups[name] for name in ("before combine", "during combine", "always"))
    assert "weights" in before and "weights" not in during
    assert "combine_slots" in during and "combine_slots" not in before
    assert any("mbarriers" in name for name in always)
    for phase in (before, during):
        bars = sorted(phase["all of it"].bars, key=lambda bar: bar.start)
        assert bars[0].start == 0 and bars[-1].end == SMEM_BYTES
        assert all(left.end == right.start for left, right in pairwise(bars))
        free = tuple(bar for bar in bars if bar.kind == "free")
        assert phase["free"].bars == free and all(bar.label == "free" for bar in free)
    assert "free" in svg_texts(draw("smem", config)) and "free" in printed(draw("smem", config))


@pytest.mark.parametrize(
    ("parts", "size", "edges", "split"),
    [
        (1, 1024, [(0, 1024)], ""),
        (4, 32768, [(0, 8192), (8192, 16384), (16384, 24576), (24576, 32768)], "4 x 8 KiB"),
        (2, 3100, [(0, 1550), (1550, 3100)], "2 x 1.51 KiB"),
        (2, 3098, [(0, 3098)], "2 x 1.51 KiB"),  # parts of less than a 150th of SMEM are one bar
    ],
)
def test_parts_of_a_field_are_bars_where_they_are_large_enough(parts, size, edges, split):
    lane = parted_lane(Bar(2048, 2048 + size, "weights", "weights"), parts, "a group")
    labels = [str(part) for part in range(parts)] if len(edges) > 1 else [""]
    assert lane.bars == tuple(Bar(2048 + a, 2048 + b, "weights", label) for (a, b), label in zip(edges, labels, strict=True))
    assert (lane.name, lane.group, lane.details) == ("weights", "a group", ("2,048", split, in_bytes(size)))


def test_smem_says_where_it_is_not_to_scale():
    assert "To scale, but for fields narrower than a line, which are drawn as a line" in draw("smem").note


# --- labels, colors, pages
@EACH
def test_labels_lie_inside_their_boxes(name, config):
    """Text in the middle of a bar or a cell, not of a heading: its box comes before it and is wide enough."""
    boxes, labels = [], 0
    for one in elements(draw(name, config)):
        if one.tag.endswith("}rect"):
            boxes.append(tuple(float(one.get(side)) for side in ("x", "y", "width", "height")))
        if one.tag.endswith("}text") and one.get("text-anchor") == "middle" and one.get("class") != "soft":
            labels += 1
            x, y, room = float(one.get("x")), float(one.get("y")), len(one.text) * CHARACTER
            assert any(
                left <= x - room / 2 and x + room / 2 <= left + width and top <= y - 10 and y <= top + height
                for left, top, width, height in boxes
            ), one.text
    assert labels or name in ("workspace", "symmetric", "pool")


@BOTH
@pytest.mark.parametrize("name", ["schedule", "pool"])
def test_colors_alone_say_nothing(name, config):
    """Kinds that share a lane differ in hatching and in the terminal's characters, and legends name them."""
    picture = draw(name, config)
    (chart,) = picture.charts
    together = {pair for lane in chart.lanes for pair in combinations(sorted({bar.kind for bar in lane.bars}), 2)}
    assert together
    for one, other in together:
        assert style(one).hatch != style(other).hatch and style(one).fill != style(other).fill, (one, other)
    assert all(kind in svg_texts(picture) and f"\u00a0{kind}" in printed(picture) for kind in chart.kinds)


def luminance(color: str) -> float:
    """Relative luminance of #rrggbb, from 0 (black) to 1 (white) (WCAG 2.1)."""
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Ratio of two colors, from 1 to 21; 4.5 is enough for text and 3 for shapes (WCAG 2.1)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("kind", [*STYLES, *map(str, range(8))])
def test_dark_and_light_terminals_show_every_kind(kind):
    color = terminal_color(kind)
    assert contrast(color, "#ffffff") >= 3 and contrast(color, "#000000") >= 4.5  # as shapes, and as the ground of black labels
    assert contrast(style(kind).color, "#111111") >= 4.5


@pytest.mark.parametrize("page", ["light", "dark"])
def test_text_is_readable_on_both_pages(page):
    colors = {name: getattr(paper, page) for name, paper in PAPER.items()}
    assert all(contrast(colors[text], colors["page"]) >= 4.5 for text in ("ink", "soft"))
    assert contrast(colors["ink"], colors["quiet"]) >= 4.5


@EACH
def test_a_page_of_its_own_that_follows_the_reader(name, config):
    text = to_svg(draw(name, config))
    root = ElementTree.fromstring(text)
    (rules,) = [one.text for one in root.iter() if one.tag.endswith("}style")]
    page, content = [one for one in root if one.tag.endswith(("}rect", "}g"))]
    assert (page.get("class"), page.get("width"), page.get("height")) == ("page", "100%", "100%")
    assert "@media (prefers-color-scheme: dark) {" in rules
    classes = {one.get("class") for one in root.iter()} - {None}
    assert classes <= set(PAPER) and all(f".{one} {{" in rules for one in classes)
    # Other text stands on bars, whose colors stay.
    assert all(one.get("class") or one.get("text-anchor") == "middle" for one in content.iter() if one.tag.endswith("}text"))


# --- schedule and pool
@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((0, "0 B"), (999, "999 B"), (1000, "1000 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (12_345, "12.1 KiB")),
        *(
            (999 << 10, "999 KiB"),
            ((1 << 20) - 25_000, "1000 KiB"),
            (1000 << 10, "1000 KiB"),
            ((1 << 20) - 1, "1024 KiB"),
            (1 << 20, "1 MiB"),
        ),
        *((1000 << 20, "1000 MiB"), (1 << 30, "1 GiB"), (5 << 40, "5120 GiB")),
    ],
)
def test_sizes_have_three_digits_and_a_unit(count, text):
    assert in_bytes(count) == text


def test_experts_that_are_full_have_all_tokens_between_them():
    config = choose(Problem(256, 128, 2, 2, max_tokens_per_rank=16, recipe="fp8xfp8"), Target.typical("sm_90a"), 16)
    assert all(sample_counts(config, 5, seed) == [5, 5] for seed in range(20))


def test_pool_and_schedule_agree_with_the_sample():
    counts = sample_counts(SM100, 256)
    pool, schedule = draw("pool").charts[0], draw("schedule").charts[0]
    assert [int(lane.details[0]) for lane in pool.lanes[:EXPERTS]] == counts[:EXPERTS]
    for lane, count in zip(pool.lanes[:EXPERTS], counts, strict=False):
        assert sum(bar.end - bar.start for bar in lane.bars if bar.kind == "tokens") == count
    blocks = sum(-(-count // SM100.block_m) for count in counts) * (SM100.fc1_n_blocks + SM100.fc2_n_blocks)
    assert all(int(lane.details[0]) in (blocks // SM100.num_clusters, blocks // SM100.num_clusters + 1) for lane in schedule.lanes)


@pytest.mark.parametrize(("rows", "ring"), [(None, False), (4096, True)])
def test_a_pool_of_fewer_rows_is_a_ring(rows, ring):
    problem = preset("flash").problem(8192, recipe="fp8xfp8")
    config = choose(problem, Target.typical("sm_90a"), 8192, pool_rows=rows)
    note = draw("pool", config, 8192).note
    assert ("The pool is a ring: rows are used again when the results of their tokens have left." in note) == ring
    assert not ring or " of 4,096 rows, " in note


@EACH
def test_no_bar_is_empty(name, config):
    """It would be drawn as a line, or as a character."""
    charts = [chart for chart in draw(name, config).charts if isinstance(chart, BarChart)]
    assert all(bar.start < bar.end for chart in charts for lane in chart.lanes for bar in lane.bars)


def test_nothing_is_scheduled_for_no_tokens():
    (chart,) = draw("schedule", tokens=0).charts
    assert len(chart.lanes) == 12 and all(lane.bars == () and lane.details == ("0",) for lane in chart.lanes)
    assert printed(draw("schedule", tokens=0)) and svg_texts(draw("schedule", tokens=0))


def test_pairs_of_sms_are_dealt_the_tiles_of_their_cluster():
    """Two CTAs with weights of their own work on the same tokens: the second has what comes after the first one's."""
    counts, lanes = sample_counts(SM90_PAIRS, 256), {lane.name: lane for lane in draw("schedule", SM90_PAIRS).charts[0].lanes}
    for name, cluster, place in (("SM 0", 0, 0), ("SM 12", 6, 0), ("SM 71", 35, 1), ("SM 131", 65, 1)):
        blocks = list(SM90_PAIRS.order.blocks(SM90_PAIRS, counts, cluster))[place::2]
        assert [bar.label for bar in lanes[name].bars] == [f"{1 + one.phase}:{one.expert}" for one in blocks[:TILES]]
        assert lanes[name].details == (str(len(blocks)),)
    assert [lane.name for lane in draw("schedule").charts[0].lanes][::11] == ["SM 0, 1", "SM 146, 147"]


def test_pool_says_how_many_experts_are_left_out():
    counts = sample_counts(SM100, 256)
    picture, left = draw("pool"), len(counts) - EXPERTS
    rest = picture.charts[0].lanes[-1]
    assert left > 0 and f"the other {left}," in picture.note
    assert (rest.name, rest.bars, rest.details[0]) == (f"{left} more", (), str(sum(counts[EXPERTS:])))
    few = choose(preset("flash").problem(256, num_experts=8 * EXPERTS), Target.typical("sm_100a"), 256)
    assert len(draw("pool", few).charts[0].lanes) == EXPERTS and "left out" not in draw("pool", few).note


@pytest.mark.parametrize("config", [SM90, SM90_PAIRS], ids=["alone", "pairs"])
def test_sm90_has_the_sms_it_has(config):
    (chart,) = draw("schedule", config, config.problem.max_tokens_per_rank).charts
    sms = [int(lane.name.removeprefix("SM ")) for lane in chart.lanes]
    assert sms[0] == 0 and sms[-1] == config.num_sms - 1 == 131


@pytest.mark.parametrize(("config", "pairs"), [(SM100, True), (SM90, False)], ids=["sm100", "sm90"])
def test_schedule_says_that_tiles_are_taken_at_run_time(config, pairs):
    note = draw("schedule", config).note
    assert "at run time: drawn is the order in which they are taken if all take equally long" in note
    assert ("SM pairs" in note) == pairs


@pytest.mark.parametrize("tokens", [16, 8192])
def test_schedule_says_what_is_drawn(tokens):
    config = choose(preset("flash").problem(tokens), Target.typical("sm_100a"), tokens)
    picture = draw("schedule", config, tokens)
    drawn = [len(lane.bars) for lane in picture.charts[0].lanes]
    counts = [int(lane.details[0]) for lane in picture.charts[0].lanes]
    assert drawn == [min(count, TILES) for count in counts]
    assert (f"the first {TILES} tiles, of up to {max(counts)}, of 12 of 74 SM pairs" in picture.note) == (max(counts) > TILES)
    assert ("all tiles of 12 of 74 SM pairs" in picture.note) == (max(counts) <= TILES)


@settings(max_examples=60)
@given(config=configs_sm100(), data=st.data())
def test_a_sample_is_what_a_rank_can_receive(config, data):
    problem, tokens = config.problem, data.draw(st.integers(0, config.problem.max_tokens_per_rank))
    counts = sample_counts(config, tokens, data.draw(st.integers(0, 100)))
    assert len(counts) == problem.experts_per_rank and sum(counts) == tokens * problem.topk
    assert all(0 <= count <= tokens * problem.num_ranks for count in counts)


@pytest.mark.parametrize(("tokens", "mean", "deviation", "error"), [(4, 0.75, 0.85, 0.35), (256, 48.0, 6.8, 1.5)])
def test_samples_are_of_a_uniform_routing(tokens, mean, deviation, error):
    """6 of 32 experts of a rank for each token: an expert's tokens are binomial."""
    samples = [sample_counts(SM100, tokens, seed) for seed in range(200)]
    assert sample_counts(SM100, tokens) == samples[0] != samples[1]
    for one in zip(*samples, strict=True):
        assert fmean(one) == pytest.approx(mean, abs=error) and pstdev(one) == pytest.approx(deviation, abs=error)


# --- tensor memory and orders
@given(config=configs_sm100())
def test_tmem_bars_are_labelled_by_their_columns(config):
    (chart,) = draw("tmem", config).charts
    bars = [lane.bars[0] for lane in chart.lanes]
    assert bars[0].start == 0 and bars[-1].end == config.tmem.allocated
    assert all(left.end == right.start for left, right in pairwise(bars))
    for lane, bar in zip(chart.lanes, bars, strict=True):
        assert bar.label == lane.details[0] == f"{bar.start}-{bar.end - 1}"


@pytest.mark.parametrize(
    ("recipe", "kinds"),
    [
        ("fp8xfp4", ["accumulators", "accumulators", "scales", "scales", "free"]),
        ("nvfp4xnvfp4", ["accumulators", "accumulators", "scales", "scales", "free"]),
        ("bf16xbf16", ["accumulators", "accumulators"]),  # 2 x 32 columns, which are a power of two
    ],
)
def test_tensor_memory_has_scales_where_operands_have_some(recipe, kinds):
    config = choose(preset("flash").problem(256, recipe=recipe), Target.typical("sm_100a"), 256, block_m=32)
    (chart,) = draw("tmem", config).charts
    assert [lane.bars[0].kind for lane in chart.lanes] == kinds


@pytest.mark.parametrize(("recipe", "channels"), [("fp8xfp4", 32), ("mxf4xmxf4", 32), ("nvfp4xnvfp4", 16)])
def test_scales_are_of_their_channels(recipe, channels):
    config = choose(preset("flash").problem(256, recipe=recipe), Target.typical("sm_100a"), 256)
    assert f"128 rows x 4 scales of {channels} channels" in draw("scales", config).note
    plain = choose(preset("flash").problem(256, recipe="bf16xbf16"), Target.typical("sm_100a"), 256)
    with pytest.raises(ConfigError, match="recipe = 'bf16xbf16': must be one with scales for a picture of scales"):
        draw("scales", plain)


def test_orders_name_every_word_and_chunk_once():
    (scales,) = draw("scales").charts
    assert sorted(int(cell.text.split()[1]) for row in scales.rows for cell in row) == list(range(128))
    for grid, chunks in zip(draw("swizzle").charts, (8, 4), strict=True):
        names = [cell.text for row in grid.rows for cell in row]
        assert sorted(names) == sorted(f"{row}.{chunk}" for row in range(8) for chunk in range(chunks))
        assert "takes 1 wavefront" in grid.caption
    assert str(Layout((32, 4), (4, 1))) in scales.caption


def test_fragments_are_those_of_the_ptx_isa():
    for grid in draw("fragments").charts:
        names = [[cell.text for cell in row] for row in grid.rows]
        assert names == [[f"{4 * (row % 8) + column // 2}.{2 * (row // 8) + column % 2}" for column in range(8)] for row in range(16)]
