"""The chooser among the ways to compute an expert-parallel layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from megamoe_dsl.arch import SM90
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.halves import way
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, GemmCombineConfig
from megamoe_dsl.kernels.moe.halves.way import Way, fastest_way
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.recipe import RECIPES
from megamoe_dsl.target import Target
from megamoe_dsl.tuned import DEFAULT_GPU, EpEntry, Table, tuned_layers

SHAPE = (512, 256, 4, 2)
MOE = Problem(hidden=512, intermediate=256, num_experts=8, topk=2, num_ranks=2, max_tokens_per_rank=4096, recipe="fp8xfp8")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few tokens were fastest unfused, many in halves; another shape fused."""
    entries = (
        EpEntry(*SHAPE, 16, {"fused": 3.0, "halves": 2.0, "unfused": 1.0}, "none"),
        EpEntry(*SHAPE, 1024, {"fused": 3.0, "halves": 1.0, "unfused": 2.0}, "none"),
        EpEntry(4096, 2048, 32, 6, 1024, {"fused": 1.0, "halves": 2.0, "unfused": 3.0}, "none"),
    )
    monkeypatch.setattr(way, "tuned_layers", lambda gpu: Table(gpu, entries if gpu == DEFAULT_GPU else (), EpEntry))
    yield


@pytest.mark.usefixtures("measured")
def test_the_nearest_point_decides() -> None:
    assert fastest_way(MOE, 0) == fastest_way(MOE, 100) == Way.UNFUSED
    assert fastest_way(MOE, 200) == fastest_way(MOE, 4096) == Way.HALVES
    assert fastest_way(MOE, 16, among=(Way.FUSED, Way.HALVES)) == Way.HALVES
    assert fastest_way(MOE, 16, among=[Way.FUSED]) == Way.FUSED
    assert fastest_way(PRESETS["flash"].problem(4096, num_experts=64, num_ranks=2, recipe="fp8xfp8"), 4096) == Way.FUSED


@pytest.mark.usefixtures("measured")
def test_bad_arguments_are_named() -> None:
    with pytest.raises(ProblemError, match=r"num_tokens = 4097"):
        fastest_way(MOE, 4097)
    with pytest.raises(ConfigError, match=r"among = \(\): must be at least one way"):
        fastest_way(MOE, 1, among=())
    with pytest.raises(ConfigError, match=r"gpu = 'NVIDIA X': must be one that was measured"):
        fastest_way(MOE, 1, gpu="NVIDIA X")


@pytest.mark.usefixtures("measured")
def test_formats_of_halves_alone_leave_halves() -> None:
    assert fastest_way(replace(MOE, recipe="bf16xbf16"), 16) == Way.HALVES
    with pytest.raises(ConfigError, match=r"among = \(<Way.FUSED: 'fused'>,\): must be halves with bf16xbf16"):
        fastest_way(replace(MOE, recipe="bf16xbf16"), 16, among=(Way.FUSED,))


def test_the_tables_entries_have_every_way() -> None:
    entries = tuned_layers(DEFAULT_GPU).entries
    assert entries and all(min(one.us.values()) > 0 for one in entries)
    assert all(set(one.us) == (set(Way) if RECIPES[one.recipe].scaled else {Way.HALVES}) for one in entries)


@pytest.mark.parametrize("kind", [DispatchGemmConfig, GemmCombineConfig])
def test_the_tables_entries_are_configurations(kind: type[DispatchGemmConfig] | type[GemmCombineConfig]) -> None:
    """What was measured is chosen at its own point."""
    for one in tuned_layers(DEFAULT_GPU).entries:
        experts = 2 * one.experts_per_rank
        moe = Problem(one.hidden, one.intermediate, experts, one.topk, 2, one.tokens, recipe=one.recipe)
        config, fields = kind.choose(moe, Target(SM90, 132, DEFAULT_GPU), one.tokens), getattr(one, kind.half)
        assert {name: getattr(config, name) for name in fields} == dict(fields)
