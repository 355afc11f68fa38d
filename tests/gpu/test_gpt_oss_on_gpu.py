"""gpt-oss-120b's layer from tokens to y on a GPU (gpt_oss_layer.py)."""

from __future__ import annotations

import pytest

from gpt_oss_layer import BOUNDS, MOST, GptOssLayer
from gpu_options import GpuOptions
from megamoe_dsl.arch import SM90

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def layer(options: GpuOptions) -> GptOssLayer:
    if options.arch != SM90 or options.small:
        pytest.skip("a layer of Hopper, of its own size")
    return GptOssLayer.of(options.kernels)


@pytest.mark.parametrize("tokens", [1, *BOUNDS, MOST])
def test_y_is_the_references(layer: GptOssLayer, tokens: int) -> None:
    found = layer.check(tokens)
    print(f"{tokens} tokens: {found}")
    assert found.passed and found.same_bits > 0.99
