"""Roles of the SM90 kernel have any warpgroups that its orders give them (kernels/moe/sm90/kernel.py)."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from mega_moe_runs import Layer, artifact
from sm90_runs import config, hopper_case, problem

from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.kernels.moe.sm90 import kernel
from sweep import rarely, sample

PAIRS = {"recipe": "fp8xmxfp4", "hidden": 512, "intermediate": 256, "num_ranks": 1, "num_experts": 1, "topk": 1}
LAYERS: dict[str, tuple[int, dict[str, Any], dict[str, int]]] = {
    "ORDER": (9, {"num_experts": 4}, {"block_m": 8}),
    "DECODING_ORDER": (140, PAIRS, {"block_m": 128, "cluster": 2, "num_stages": 2}),
}
SAMPLES = (("math", "dispatch", "loaders"), ("decode", "others", "math"))


def other_orders() -> list[Any]:
    """All but those of the kernel."""
    there = [(name, getattr(kernel, name)) for name in LAYERS]
    found = [(name, order) for name, now in there for order in permutations(now) if order != now]
    return [one if one[1] in SAMPLES else rarely(*one) for one in found]


@sample("ORDER-order3")
@pytest.mark.parametrize(("name", "order"), other_orders())
def test_any_order_gives_the_same_bits(name: str, order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Race detector on; other instructions than those of the kernel's own order."""
    tokens, fields, choices = LAYERS[name]
    case = hopper_case(problem(tokens, **fields), [tokens] * problem(tokens, **fields).num_ranks, 0, exact=False)
    chosen = config(case.problem, num_sms=2, **choices)
    own = artifact(chosen).ptx
    monkeypatch.setattr(kernel, name, order)
    compiled = compile_kernel(chosen)
    assert compiled.ptx != own
    ranks = Layer.of(compiled, case).check(case)
    assert [one.unequal for one in ranks] == [0] * len(ranks)
