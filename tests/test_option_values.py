"""No option of a layer is ignored: each becomes its field of the problem or of the configuration, and changes no other."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from megamoe_dsl.cli.options import ConfigOptions

BASE: dict[str, Any] = {"arch": "sm_90a", "hidden": 512, "intermediate": 256, "experts": 8, "topk": 2, "ranks": 2, "recipe": "fp8xfp8"}
PROBLEM = {
    "hidden": (1024, "hidden"),
    "intermediate": (512, "intermediate"),
    "experts": (16, "num_experts"),
    "topk": (3, "topk"),
    "ranks": (4, "num_ranks"),
    "recipe": ("fp8xmxfp4", "recipe"),
    "combine": ("e4m3", "combine"),
    "clamp": (3.0, "activation_clamp"),
    "activation": ("swigluoai", "activation"),
    "biases": (True, "biases"),
    "weigh_results": (True, "weigh_results"),
}
CONFIG = {"block_m": (32, "block_m"), "lookahead": (3, "lookahead"), "stages": (2, "num_stages"), "pool_rows": (1024, "pool_rows")}


@pytest.mark.parametrize("name", PROBLEM)
def test_an_option_becomes_its_field_of_the_problem(name: str) -> None:
    value, field = PROBLEM[name]
    plain, given = (ConfigOptions(**{**BASE, **changes}).problem(8) for changes in ({}, {name: value}))
    assert getattr(given, field) == value != getattr(plain, field)
    assert given == replace(plain, **{field: value})


@pytest.mark.parametrize("name", CONFIG)
def test_an_option_becomes_its_field_of_the_configuration(name: str) -> None:
    value, field = CONFIG[name]
    configs = []
    for changes in ({}, {name: value}):
        options = ConfigOptions(**{**BASE, **changes})
        configs.append(options.config(options.problem(8), 8, 4))
    plain, given = configs
    assert getattr(given, field) == value != getattr(plain, field)
    assert given.problem == plain.problem and given.num_sms == plain.num_sms == 4


def test_tokens_of_4_bits_have_stages_of_more_channels() -> None:
    options = ConfigOptions(**{**BASE, "arch": "sm_100a", "recipe": "mxf4xmxf4"})
    chosen = options.config(options.problem(8), 8, 4)
    other = replace(options, block_k=384 - chosen.block_k)
    assert other.config(other.problem(8), 8, 4).block_k == 384 - chosen.block_k


def test_all_options_are_tried() -> None:
    assert {one.name for one in fields(ConfigOptions)} == {*PROBLEM, *CONFIG, "arch", "preset", "block_k"}
