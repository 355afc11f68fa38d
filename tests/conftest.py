"""What holds for every test: a busy machine fails none, so hypothesis looks at no clock; and the garbage collector has little to do."""

import gc
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from forked import forked_process
from quick import forbid_the_compiler, is_quick
from sweep import mark_the_sweep

with suppress(ImportError):  # the checks on GPUs run without hypothesis
    from hypothesis import HealthCheck, settings

    settings.register_profile("any machine", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only tests that touch no compiler, which they cannot import")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("quick"):
        forbid_the_compiler()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("quick") and not is_quick(collection_path) else None


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_the_sweep(items, complete=not any("::" in one for one in config.args))


def pytest_collection_finish() -> None:
    """Imported modules stay, and kernels that a process has compiled are large and few: looking at all that often is 5 % of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 10)


@pytest.fixture
def cpu_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process groups without CUDA."""
    monkeypatch.setenv("MEGAMOE_BENCH_BACKEND", "gloo")
    monkeypatch.setattr("megamoe_dsl.bench.process_group.get_context", lambda method: SimpleNamespace(Process=forked_process))


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled in this process: for a few that is faster than two more that import the DSL."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps its number of threads: those that a search of the fuzzer takes for itself would stay for all tests that follow."""
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
