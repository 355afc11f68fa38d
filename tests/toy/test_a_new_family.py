"""A new family of kernels touches its own folder and one line of the registry: everything else takes it as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from double import DoubleConfig, DoubleKernel, Doubling

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.artifact.export import export_kernel
from megamoe_dsl.artifact.store import ArtifactStore, describe_config, read_config
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.inspect import Inspection
from megamoe_dsl.kernels import registry
from megamoe_dsl.runtime.exported_kernel import ExportedKernel
from megamoe_dsl.sim import GlobalMemory, Launch, Simulator
from megamoe_dsl.target import Target

COUNT = 70


@pytest.fixture(autouse=True)
def one_line_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "KERNELS", [*registry.KERNELS, DoubleKernel()])


@pytest.fixture(params=["sm_100a", "sm_90a"])
def config(request: pytest.FixtureRequest) -> DoubleConfig:
    chosen: DoubleConfig = registry.find_kernel("double").choose(Doubling(COUNT), Target.typical(request.param), 0)
    return chosen


def run(artifact: Artifact, x: torch.Tensor, y: torch.Tensor) -> None:
    """One launch on a simulated rank, without a finding."""
    memory = GlobalMemory()
    memory.add(x, name="x", rank=0, read_only=True)
    memory.add(y, name="y", rank=0, initialized=False)
    arguments = artifact.kernel.arguments(artifact.config).pack(y=y.data_ptr(), x=x.data_ptr(), count=COUNT)
    launch = Launch(grid=(artifact.config.num_sms, 1, 1), block=(artifact.config.num_threads, 1, 1), args=arguments)
    assert Simulator(artifact.ptx, memory).run([launch]).findings == []


def test_compiled_stored_and_simulated(config: DoubleConfig, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    made = store.get(config)
    found = store.load(config)
    assert (found.ptx, found.cubin, found.config) == (made.ptx, made.cubin, config)
    assert list(store.configs(DoubleConfig)) == [config] == [read_config(json.loads(json.dumps(describe_config(config))))]
    x, y = torch.arange(COUNT, dtype=torch.int32), torch.zeros(COUNT, dtype=torch.int32)
    run(found, x, y)
    assert torch.equal(y, 2 * x)


def test_inspected(config: DoubleConfig) -> None:
    found = Inspection.of(compile_kernel(config, line_info=True)).as_dict()
    assert found["arch"] == config.arch_name and found["resources"]["stack_bytes"] == 0 == found["resources"]["smem_bytes"]
    assert found["config"]["num_sms"] == config.num_sms == 3 and found["measures"] == {}


def test_exported(config: DoubleConfig, tmp_path: Path) -> None:
    files = export_kernel(config, tmp_path)
    manifest = json.loads(files.manifest.read_text())
    assert manifest["function"] == "double" and manifest["grid"] == [3, 1, 1]
    assert manifest["arguments"] == [{"name": "x", "type": "int64"}, {"name": "y", "type": "int64"}, {"name": "count", "type": "int32"}]
    assert ExportedKernel(files.manifest).config == config


def test_its_sources_are_its_folders(config: DoubleConfig) -> None:
    assert registry.kernel_of(config).sources == (Path(__file__).parent,)


def test_arguments_are_checked_by_name(config: DoubleConfig) -> None:
    with pytest.raises(TypeError, match="arguments z: must be exactly x, y, count"):
        registry.kernel_of(config).arguments(config).pack(x=1, y=2, count=3, z=4)


def test_what_is_no_kernels_configuration_is_named() -> None:
    with pytest.raises(ConfigError, match=r"config = Doubling\(count=1\): must be a configuration: choose"):
        compile_kernel(Doubling(1))  # type: ignore[arg-type]
