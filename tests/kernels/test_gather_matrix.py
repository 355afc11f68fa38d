"""Every combination of layouts, gate and up, consumers and architectures, over 128 or 512 experts of no row to many: exact, no finding.

A few run with the suite, all of them with

    python -m pytest -m "sweep or not sweep" tests/kernels/test_gather_matrix.py
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from test_pair_gemm import PADDING

from gather_runs import LAYOUTS, MANY, GatherRun
from megamoe_dsl.activation import ACTIVATIONS
from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.blocks.gemm.problem import GATE_UP
from megamoe_dsl.blocks.gemm.sm100.config import Sm100GemmConfig
from megamoe_dsl.kernel_cases.gather import as_integers
from megamoe_dsl.recipe import RECIPES
from megamoe_dsl.runtime.simulated import simulate_gemm
from pair_gather_runs import PairGatherRun
from pair_gemm_runs import NVFP4, PLAIN
from ptx_of import artifact
from sweep import rarely, sample

SOME = tuple({2: 70, 31: 1, 32: 33, 96: 129, 127: 5}.get(expert, 0) for expert in range(128))
"""Rows of 128 experts: experts of none, of one, of more than a tile; `MANY` are those of 512."""
ARCHS = ("sm_90a", "sm_100a")
CONSUMERS = (1, 2)
FORMULAS = tuple(ACTIVATIONS)
APPROXIMATED = 1e-4
"""So rarely BF16, whose unit is finer than E4M3's and E2M1's, shows that situ's tanh is approximated: by one unit."""


def combination(arch: str, layout: tuple[str, str], gate_up: str, consumers: int) -> GatherRun:
    """The run; experts and formula alternate, so that each meets every other choice."""
    turn = LAYOUTS.index(layout) + GATE_UP.index(gate_up) + consumers
    counts = MANY if turn % 2 else SOME
    formula = FORMULAS[turn % len(FORMULAS)]
    problem: dict[str, Any] = {"n": 528, "k": 128, "source": layout[0], "result": layout[1]}
    if gate_up:
        problem |= {"n": 512, "gate_up": gate_up, "output": "e4m3", "activation": formula}
    name = "-".join((arch, *layout, gate_up or "plain", str(consumers)))
    if arch == "sm_100a":
        return PairGatherRun(name, counts, 64, problem=problem, fields={"consumers": consumers, "dynamic_schedule": True})
    tile = (64 * consumers, 256) if gate_up else (64, 128)
    return GatherRun(name, counts, *tile, problem, {"warpgroups": consumers, "dynamic_schedule": True})


def of_recipe(recipe: str, layout: tuple[str, str], gate_up: str, consumers: int, pairs: int) -> PairGatherRun:
    """Gate and up in another number format of SM100, of 128 experts; formulas and whether gate and up are stored alternate."""
    turn = LAYOUTS.index(layout) + GATE_UP.index(gate_up) + consumers
    problem: dict[str, Any] = {"n": 1024, "k": 128, "source": layout[0], "result": layout[1], "recipe": recipe, "gate_up": gate_up}
    problem |= {"output": RECIPES[recipe].hidden.element, "activation": FORMULAS[turn % len(FORMULAS)], "preactivations": turn % 2 == 0}
    name = "-".join((recipe, *layout, gate_up, str(consumers), str(pairs)))
    return PairGatherRun(name, SOME, 64, problem=problem, fields={"consumers": consumers, "pairs": pairs, "dynamic_schedule": True})


RECIPE_RUNS = {run.name: run for run in (of_recipe(*one) for one in product((NVFP4, PLAIN), LAYOUTS, GATE_UP[1:], CONSUMERS, (1, 2)))}
RUNS = {run.name: run for run in (combination(*one) for one in product(ARCHS, LAYOUTS, GATE_UP, CONSUMERS))}
SAMPLE = {"sm_90a-packed-packed-plain-2", "sm_100a-gathered-packed-up_first-2"}


@sample("sm_100a-gathered-packed-up_first-2")
@pytest.mark.parametrize("name", [name if name in SAMPLE else rarely(name) for name in (*RUNS, *RECIPE_RUNS)])
def test_every_combination_is_exact(name: str) -> None:
    """To the bit, but for situ's values that stay BF16; rows of no expert, and their scales, stay as they were."""
    run = {**RUNS, **RECIPE_RUNS}[name]
    case = run.case(exact=True)
    compared = case.compared(exact=True)
    report = simulate_gemm(artifact(run.config), case.tensors)
    assert not report.findings and [text for text in report.warnings if PADDING not in text] == []
    d, expected, _ = (as_integers(one).int() for one in compared.pop("D"))
    units = (d - expected).abs()
    problem = run.config.problem
    approximated = APPROXIMATED if problem.activation == "situ" and problem.gate_up and problem.output == "bf16" else 0.0
    assert int(units.max()) <= 1 and float((units > 0).float().mean()) <= approximated
    assert all(torch.equal(written, scales) for written, scales, _ in compared.values())


def test_each_choice_meets_each_other() -> None:
    """Also numbers of experts and formulas, which alternate."""
    assert len(RUNS) == len(ARCHS) * len(LAYOUTS) * len(GATE_UP) * len(CONSUMERS) and set(RUNS) >= SAMPLE
    fields = ("gate_up", "source", "result")
    met = set()
    for run in RUNS.values():
        config = run.config
        assert isinstance(config, GemmConfig | Sm100GemmConfig)
        values = [(field, getattr(config.problem, field)) for field in fields] + [("consumers", config.sharing[0])]
        met |= {(str(config.arch), one, len(run.counts)) for one in values}
        met |= {(str(config.arch), one, config.problem.activation) for one in values if config.problem.gate_up}
    plain, activated = 4 + 3 + 2 + 2, 3 + 3 + 2 + 2
    assert len(met) == len(ARCHS) * (plain * 2 + activated * len(FORMULAS))


def test_consumers_of_sm90_share_rows_of_a_or_of_b() -> None:
    """Of A where a tile has 64 rows; of B where gate and up of a row lie in one thread."""
    configs, two = [run.config for run in RUNS.values()], "2, which share rows of"
    of_sm90 = {(bool(one.problem.gate_up), one.sharing) for one in configs if isinstance(one, GemmConfig)}
    assert of_sm90 == {(False, "1"), (False, f"{two} A"), (True, "1"), (True, f"{two} B")}
