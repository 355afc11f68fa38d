"""Adapters name nothing that the recorded releases of the engines do not have."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest
from record import Record
from sources import Sources
from touched import touched
from wheel import ROOT, WHEELS, Wheel


@pytest.mark.parametrize("wheel", WHEELS.values(), ids=lambda wheel: wheel.name)
def test_the_record_has_what_the_adapter_touches(wheel: Wheel) -> None:
    record = Record.load(wheel.name)
    assert record.version == wheel.version
    missing = {wheel.group, *touched(wheel.adapter, wheel.name)} - record.names.keys()
    assert not missing, f"run make engines: {wheel.name} {wheel.version} is not known to have {sorted(missing)}"


@pytest.mark.parametrize("wheel", WHEELS.values(), ids=lambda wheel: wheel.name)
def test_the_package_is_in_the_engines_group(wheel: Wheel) -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    plugin = groups[ast.literal_eval(Record.load(wheel.name).names[wheel.group])]
    assert set(plugin.values()) == {f"megamoe_dsl.compat.engines.{wheel.name}:register"}


ENGINE = """
from .parts import helper as part
if True:
    def run(layer: int, *, rows: int = 3) -> None: ...
LIMIT: int = 4
class Layer:
    size: int
    def __init__(self, size): self.size = size; self.register_parameter("w13", None)
    def forward(self, x): return x.unknown
"""


def test_what_sources_declare(tmp_path: Path) -> None:
    package = tmp_path / "engine"
    package.mkdir()
    (package / "__init__.py").write_text("from .layer import run\n")
    (package / "layer.py").write_text(ENGINE)
    (package / "parts.py").write_text("def helper(a, b=1): ...\n")
    sources = Sources(tmp_path)
    found = {
        "engine.layer": "module",
        "engine.run": "layer, *, rows=3",
        "engine.layer.part": "a, b=1",
        "engine.layer.LIMIT": "4",
        "engine.layer.Layer": "self, size",
        "engine.layer.Layer.forward": "self, x",
        "engine.layer.Layer.w13": "attribute",
        "engine.layer.Layer.gone": None,
        "engine.gone": None,
        "gone.run": None,
    }
    assert {name: sources.signature(name) for name in found} == found


ADAPTER = """
from typing import Annotated, Any
from engine.layer import run
Layer = Annotated[Any, "engine.layer.Layer"]
HOOKS = {"engine.layer.Layer.forward": run, "not a name": 0, "other.layer.Layer": 0}
def own(layer: Layer, other: Any) -> None:
    part: Layer | None = layer.first
    other.unknown = part.second, found().third
def found() -> Layer: ...
"""


def test_what_an_adapter_touches(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter.py"
    adapter.write_text(ADAPTER)
    of_the_layer = {f"engine.layer.Layer.{name}" for name in ("forward", "first", "second", "third")}
    assert touched([adapter], "engine") == {"engine.layer.run", *of_the_layer}
