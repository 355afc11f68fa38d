"""Tables of measured configurations: what an entry speaks for, what the committed ones rest on, and that a file changes as a whole."""

import json
import math
import os
from dataclasses import asdict, fields, replace
from functools import reduce
from pathlib import Path

import pytest

from megamoe_dsl import SM90, Target, choose
from megamoe_dsl.bench.results import Results
from megamoe_dsl.bench.tuning import beats, median
from megamoe_dsl.bench.variant import candidates, read_fields, variant_fields
from megamoe_dsl.json_file import FOLDER_VARIABLE, tables_folder
from megamoe_dsl.kernels.moe import choose as mega_moe_choose
from megamoe_dsl.kernels.moe.sm90.config import NUM_SMS, Sm90Config
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.presets.compiled import configs_up_to
from megamoe_dsl.problem import Problem
from megamoe_dsl.tuned import DEFAULT_GPU, Entry, EpEntry, GemmEntry, LaunchEntry, Table, TableError, table, tuned_table

RESULTS = Path(__file__).parents[1] / "bench" / "results"
FLASH = PRESETS["flash"].problem(8192, recipe="fp8xfp8")
H200 = Target(SM90, NUM_SMS, DEFAULT_GPU)
OTHER = {"block_m": 32, "lookahead": 16, "num_stages": 3, "cluster": 1}
"""A configuration that the heuristics never choose."""


def entry(tokens: int, us: float = 1.0, **choice: int) -> Entry:
    """Of Flash on eight H200s."""
    return Entry(4096, 2048, 32, 6, NUM_SMS, 8, tokens, {**OTHER, **choice}, us, "run.json")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 200, 512 and 600 tokens, where the heuristics choose alike, and at 1000, where they do not."""
    one = Table(DEFAULT_GPU, (entry(200), entry(512), entry(600, num_stages=99), entry(1000, block_m=16)))
    monkeypatch.setattr(mega_moe_choose, "tuned_table", lambda gpu: one if gpu == DEFAULT_GPU else Table(gpu))


def chosen(tokens: int, problem: Problem = FLASH, target: Target = H200, **fields: int) -> dict[str, int]:
    return variant_fields(choose(problem, target, tokens, **fields))


def heuristic(tokens: int, problem: Problem = FLASH) -> dict[str, int]:
    return chosen(tokens, problem, Target(SM90, NUM_SMS))


@pytest.mark.usefixtures("measured")
def test_a_measured_point_is_chosen_and_speaks_for_its_neighborhood() -> None:
    assert chosen(512) == chosen(500) == chosen(268) == OTHER
    assert chosen(600)["block_m"] == chosen(682)["block_m"] == 32
    assert chosen(683)["block_m"] == 16, "the heuristics' case of 1000 tokens, not that of 600, which is nearer"


@pytest.mark.usefixtures("measured")
def test_beyond_its_reach_or_the_heuristics_case_an_entry_is_silent() -> None:
    for tokens in (0, 1, 99, 101, 120, 2001, 2048, 8192):
        assert chosen(tokens) == heuristic(tokens)
    assert heuristic(120)["block_m"] == 32 != heuristic(200)["block_m"], "in reach of 200 tokens, but another case"


@pytest.mark.usefixtures("measured")
def test_another_share_gpu_or_tile_has_the_heuristics() -> None:
    assert chosen(512, FLASH, Target(SM90, 100, DEFAULT_GPU)) == chosen(512, FLASH, Target(SM90, 100, "NVIDIA H100"))
    assert chosen(512, FLASH, Target(SM90, NUM_SMS, "NVIDIA H100")) == heuristic(512)
    for changes in ({"intermediate": 1024}, {"num_experts": 128}, {"hidden": 2048}):
        problem = PRESETS["flash"].problem(8192, recipe="fp8xfp8", **changes)
        assert chosen(512, problem) == heuristic(512, problem)
    assert chosen(512, block_m=128) == heuristic(512)


@pytest.mark.usefixtures("measured")
def test_candidates_are_what_is_measured_and_what_the_heuristics_choose() -> None:
    found = [variant_fields(one) for one in candidates(FLASH, 512, H200)]
    assert found[:2] == [OTHER, heuristic(512)] != [OTHER] * 2


@pytest.mark.usefixtures("measured")
def test_the_same_share_on_fewer_ranks_and_overrides() -> None:
    problem = PRESETS["flash"].problem(8192, recipe="fp8xfp8", num_experts=64, num_ranks=2)
    assert chosen(512, problem) == OTHER
    assert chosen(512, lookahead=8) == {**OTHER, "lookahead": 8}


@pytest.mark.usefixtures("measured")
def test_a_ring_that_does_not_fit_becomes_the_deepest() -> None:
    assert chosen(600) == {**OTHER, "num_stages": choose(FLASH, H200, 600, block_m=32).num_stages}


@pytest.mark.usefixtures("measured")
def test_a_preset_has_every_configuration_of_a_table() -> None:
    problem = PRESETS["flash"].problem(2100, recipe="fp8xfp8")
    found = configs_up_to(problem, 2100, Target.typical("sm_90a"))
    assert {one.block_m for one in found} == {8, 16, 32, 128}
    measured_ones = [OTHER, {**OTHER, "block_m": 16}, chosen(600, problem)]
    assert all(one in map(variant_fields, found) for one in measured_ones)
    assert all(choose(problem, H200, tokens) in found for tokens in range(2101))


def test_nearest_is_a_ratio() -> None:
    one = Table(DEFAULT_GPU, (entry(100), entry(200), entry(300)))
    share = Entry.share_of(entry(1))
    found = [near.tokens for near in one.near(share, entry(142).expected)]
    assert found == [200, 100], "142 is nearer to 100 in tokens, to 200 in ratio; 300 is out of reach"
    assert [[near.tokens for near in one.near(share, entry(tokens).expected)] for tokens in (50, 600)] == [[100], [300]]
    assert one.at(share, entry(200).expected) == entry(200) and one.at(share, entry(142).expected) is None
    assert one.near(share, 0) == one.near(Entry.share_of(entry(1), num_sms=78), entry(100).expected) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"entries": [{}]}', "old"])
def test_another_file_is_no_table(tmp_path: Path, text: str) -> None:
    """Among them one of an earlier release, whose choice had another field."""
    path = Table("GPU", (entry(64),)).write(tmp_path)
    path.write_text(path.read_text().replace('"num_stages"', '"swap_ab": true, "num_stages"') if text == "old" else text)
    with pytest.raises(TableError, match=r"gpu\.json: no table of this release"):
        Table.read("GPU", tmp_path)


GEMM = GemmEntry(128, 256, "dense", 1, 132, 64, {"split_k": True, "block_m": 64}, 5.0, "run.json")
EP = EpEntry(4096, 2048, 32, 6, 64, "run.json", dispatch={"cluster": 1})
LAUNCH = LaunchEntry(4096, 2048, 32, 6, 64, {"fused": 6.0, "stages": 7.25}, "run.json")
AnyEntry = Entry | GemmEntry | EpEntry | LaunchEntry


@pytest.mark.parametrize(
    ("kind", "name"),
    [(type(one), field.name) for one in (entry(64), GEMM, EP, LAUNCH) for field in fields(one)],
    ids=lambda one: getattr(one, "SUFFIX", one),
)
def test_a_field_of_another_type_is_named(tmp_path: Path, kind: type[AnyEntry], name: str) -> None:
    """A table is a file that anybody may have edited: no field takes what its class does not declare."""
    good = {type(one): one for one in (entry(64), GEMM, EP, LAUNCH)}[kind]
    path = Table("GPU", (good,), kind).write(tmp_path)
    assert Table.read("GPU", tmp_path, kind).entries == (good,)
    text = {"results", "recipe", "kind"} & {name}
    wrong = [
        None,
        math.nan,
        -1,
        [1],
        True,
        *([10**400] if text else [0, "text", {"x": -1}, {"x": None}, {"x": -1, "y": 1}, {"x": 1, "y": math.inf}]),
    ]
    wrong += [] if text else [math.inf] if name == "us" else [2.5, (1 << 31) + 1]
    for value in wrong:
        path.write_text(json.dumps({"gpu": "GPU", "entries": [{**asdict(good), name: value}]}))
        with pytest.raises(TableError, match=rf"gpu.*\.json: no table of this release, {name} = ") as caught:
            Table.read("GPU", tmp_path, kind)
        assert "must be" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("one", "names"),
    [
        (entry(64), {"hidden", "intermediate", "experts_per_rank", "num_sms", "recipe"}),
        (GEMM, {"n", "k", "kind", "num_groups", "num_sms", "recipe"}),
        (EP, {"hidden", "intermediate", "experts_per_rank", "topk", "recipe"}),
        (LAUNCH, {"hidden", "intermediate", "experts_per_rank", "topk", "recipe"}),
    ],
    ids=lambda one: getattr(one, "SUFFIX", None),
)
def test_an_entry_speaks_for_its_share_alone(one: AnyEntry, names: set[str]) -> None:
    others = {name: 2 * value for name, value in asdict(one).items() if isinstance(value, int | str)}
    assert {name for name, value in others.items() if one.share_of(replace(one, **{name: value})) != one.share_of(one)} == names


@pytest.mark.parametrize(
    ("one", "text", "expected"),
    [
        (entry(64), "block_m=32 lookahead=16 num_stages=3 cluster=1 1.0 us", 64 * 6 / 32),
        (GEMM, "split_k=True block_m=64 5.0 us", 64.0),
        (replace(GEMM, kind="packed", num_groups=4), "split_k=True block_m=64 5.0 us", 16.0),
        (replace(EP, combine={"scatter": False, "task_tokens": 8}), "cluster=1 scatter=False task_tokens=8", 12.0),
        (LAUNCH, "fused=6.0 stages=7.25", 12.0),
    ],
    ids=lambda one: getattr(one, "SUFFIX", None),
)
def test_what_an_entry_says(one: AnyEntry, text: str, expected: float) -> None:
    """Its choices and its time; tokens of an expert, or rows of a group."""
    assert (one.winner, one.expected, one.key) == (text, expected, (one.share_of(one), expected))


def test_an_entry_may_be_of_one_of_everything() -> None:
    """A token, an expert, a rank and an SM; a choice may be 0, as the deepest ring is."""
    one = Entry(1, 1, 1, 1, 1, 1, 1, {**OTHER, "num_stages": 0}, 0.5, "")
    assert (one.expected, one.winner) == (1.0, "block_m=32 lookahead=16 num_stages=0 cluster=1 0.5 us")
    for name in ("hidden", "experts_per_rank", "topk", "num_sms", "num_ranks", "tokens"):
        for value in (0, (1 << 31) + 1):
            with pytest.raises(ValueError, match=f"{name} = {value}: must be an integer from 1 to 2"):
                replace(one, **{name: value})
        assert getattr(replace(one, **{name: 1 << 31}), name) == 1 << 31


def test_choices_of_both_architectures_are_told() -> None:
    """No other set of fields is one."""
    sm100 = {"block_m": 64, "lookahead": 4, "num_stages": 0, "store_block_m": 8, "epilogue_warpgroups": 1, "block_k": 128}
    assert replace(entry(8), choice=sm100).choice == sm100
    allowed = "block_m, cluster, lookahead, num_stages or block_k, block_m, epilogue_warpgroups, lookahead, num_stages, store_block_m"
    for choice in ({**sm100, "cluster": 1}, {"block_m": 64}, {}):
        with pytest.raises(ValueError, match=f"must have the fields {allowed}$"):
            replace(entry(8), choice=choice)


def test_an_entry_has_at_most_2_31_tokens() -> None:
    assert entry(1 << 31).tokens == 1 << 31


def test_what_is_no_file_is_no_table(tmp_path: Path) -> None:
    place = tmp_path / "gpu.json"
    place.mkdir()
    with pytest.raises(TableError, match="a folder: must be a regular file"):
        Table.read("GPU", tmp_path)
    place.rmdir()
    os.mkfifo(place)
    with pytest.raises(TableError, match="a named pipe: must be a regular file"):
        Table.read("GPU", tmp_path)
    place.unlink()
    place.write_text('{"entries": ' + "[" * 100_000)
    with pytest.raises(TableError, match="nested too deeply"):
        Table.read("GPU", tmp_path)
    assert Table.read("a" * 5000, tmp_path).entries == ()


def test_writing_replaces_one_entry_and_the_file_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Table("GPU 1/2", ()).having(entry(64)).having(entry(8))
    path = first.write(tmp_path)
    assert path.name == "gpu_1_2.json" and Table.read("GPU 1/2", tmp_path) == first
    assert len(path.read_text().splitlines()) == len(first.entries) + 2
    second = first.having(entry(64, us=2.0))
    assert [(one.tokens, one.us) for one in second.entries] == [(8, 1.0), (64, 2.0)]

    def fail(*_: object) -> None:
        raise OSError("full")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(table.os, "replace", fail)
        second.write(tmp_path)
    assert Table.read("GPU 1/2", tmp_path) == first and list(tmp_path.iterdir()) == [path]


def test_a_gpu_without_a_file_has_an_empty_table(tmp_path: Path) -> None:
    assert Table.read("NVIDIA H100", tmp_path).entries == ()


def test_what_a_user_measured_comes_before_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same point; other entries of the package stay, and other points of the user's are found beside them."""
    package = Table.read(DEFAULT_GPU)
    first, *others = package.entries
    own = replace(first, us=1.0), entry(12345)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    folder = tables_folder()
    folder.mkdir()
    Table(DEFAULT_GPU, own).write(folder)
    found = tuned_table.__wrapped__(DEFAULT_GPU, Entry)
    assert {one.key for one in found.entries} == {one.key for one in (*own, *others)}
    assert found.at(*first.key) == own[0] and found.at(*own[1].key) == own[1]
    assert all(found.at(*one.key) == one for one in others)


# --- the committed tables
TABLES = [tuned_table(json.loads(path.read_text())["gpu"]) for path in table.FOLDER.glob("*.json")]
ENTRIES = [pytest.param(one.gpu, entry, id=f"{one.gpu} {entry.hidden} {entry.tokens}") for one in TABLES for entry in one.entries]


def test_tables_are_as_they_would_be_written() -> None:
    assert DEFAULT_GPU in [one.gpu for one in TABLES]
    for one in TABLES:
        assert one.entries and reduce(Table.having, one.entries, Table(one.gpu)) == one


@pytest.mark.parametrize(("gpu", "entry"), ENTRIES)
def test_an_entry_is_what_its_results_say(gpu: str, entry: Entry) -> None:
    """Its configuration was timed there, was right, took what the entry says, and no other that was right beats it."""
    found = Results.read(RESULTS / entry.results)
    assert found.gpu == gpu
    (record,) = [one for one in found.records if "variants" in one and is_of(one["point"], entry)]
    assert record.get("num_sms", NUM_SMS) == entry.num_sms
    own = {name: times for name, times in record["variants"].items() if name.startswith("block_m")}  # others are of FP8 weights
    right = {name: times for name, times in own.items() if times["check"]["passed"]}
    mine = [times for name, times in right.items() if agrees(name, entry) and round(median(times), 1) == entry.us]
    assert mine and len(right) > 1, "rings of two depths may take the same time"
    assert not any(beats(times, mine[0]) for times in right.values())


@pytest.mark.parametrize(("gpu", "entry"), ENTRIES)
def test_an_entry_is_chosen_at_its_point(gpu: str, entry: Entry) -> None:
    problem = problem_of(entry)
    config = choose(problem, Target(SM90, entry.num_sms, gpu), entry.tokens)
    assert config == mega_moe_choose.measured(Sm90Config, problem, entry)
    assert {**asdict(config), **entry.choice, "num_stages": 0} == {**asdict(config), "num_stages": 0}


def problem_of(entry: Entry) -> Problem:
    return Problem(
        *(entry.hidden, entry.intermediate, entry.experts_per_rank * entry.num_ranks, entry.topk, entry.num_ranks, entry.tokens),
        recipe=entry.recipe,
    )


def is_of(point: dict[str, int | str | None], entry: Entry) -> bool:
    shape = PRESETS[str(point["preset"])]
    local = point["experts_per_rank"] or shape.num_experts // entry.num_ranks
    mine = (shape.hidden, shape.intermediate, local, shape.topk, point["ranks"], point["tokens"])
    return mine == (entry.hidden, entry.intermediate, entry.experts_per_rank, entry.topk, entry.num_ranks, entry.tokens)


def agrees(name: str, entry: Entry) -> bool:
    deepest = {"num_stages": 0} if entry.choice["num_stages"] == 0 else {}
    return {**read_fields(name, entry.recipe), **deepest} == entry.choice
