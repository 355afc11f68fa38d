"""Quantization of rows as `EpMoE` does it: a graph may hold it, and it is the checked one's where values are finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from megamoe_dsl.quant import MICRO_SCALING, quantize
from megamoe_dsl.recipe import RECIPES
from megamoe_dsl.runtime.ep.buffers import RowActivations

HOST = {"aten._local_scalar_dense", "aten.lift_fresh", "aten.item", "aten.nonzero", "aten.equal"}
FORMATS = {name: RECIPES[name].activations for name in ("fp8xfp8", "fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8")}


class Called(TorchDispatchMode):
    """Names of the operators that torch calls."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_read_on_the_host_or_copied_from_there(name: str) -> None:
    rows = torch.randn(128, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    with Called() as called:
        RowActivations.of(rows, FORMATS[name])
    assert called.names and not called.names & HOST


def test_a_check_would_be_seen() -> None:
    with Called() as called:
        MICRO_SCALING[FORMATS["fp8xfp4"].element].quantize(torch.ones(1, 128))
    assert called.names & HOST


@pytest.mark.parametrize("name", ["fp8xfp4", "mxf4xmxf4"])
def test_what_is_not_finite_stays_in_its_block(name: str) -> None:
    rows = torch.randn(4, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    values, scales = MICRO_SCALING[FORMATS[name].element].quantize(rows)
    broken = rows.clone()
    broken[1, 40], broken[3, 255] = torch.nan, torch.inf
    found = quantize(broken, FORMATS[name], check=False)
    same = torch.ones(4, 8, dtype=torch.bool)
    same[1, 1] = same[3, 7] = False
    assert torch.equal(found[1][same], scales[same])
    blocks = [one.view(torch.uint8).unflatten(1, (8, -1))[same] for one in (found[0], values)]
    assert torch.equal(*blocks)


@pytest.mark.parametrize("name", FORMATS)
def test_no_rows_have_no_scales(name: str) -> None:
    none, some = (RowActivations.of(torch.zeros(rows, 256, dtype=torch.bfloat16), FORMATS[name]) for rows in (0, 128))
    for without, one in zip(vars(none).values(), vars(some).values(), strict=True):
        assert without.dtype == one.dtype and without.numel() == 0
    assert none.scales.shape == (len(some.scales), 0)
