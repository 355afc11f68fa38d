"""The adapter within SGLang's own modules (`make engines`)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest
from record import Record
from stubs import importable
from wheel import WHEELS

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module", autouse=True)
def sglang() -> Iterator[None]:
    with importable(WHEELS["sglang"]):
        yield


def test_modules_of_the_record_are_importable() -> None:
    for name, signature in Record.load("sglang").names.items():
        if signature == "module":
            assert import_module(name).__name__ == name
