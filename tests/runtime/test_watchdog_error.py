"""An error becomes a `WatchdogError` when a record explains it, and stays itself otherwise."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import HashStore

from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.lost_ranks import STATE, Understudy
from megamoe_dsl.runtime.watchdog import WatchdogError, check_watchdog_ns, name_silent, naming_the_wait, silent_ranks


@dataclass
class Record:
    message: str | None

    def watchdog_message(self) -> str | None:
        return self.message


def test_a_record_names_the_wait() -> None:
    records = Record("rank 0"), Record(None), Record("rank 1, SM 3: wait RANK")
    with pytest.raises(WatchdogError, match=r"^rank 0; rank 1, SM 3: wait RANK$") as caught, naming_the_wait(*records):
        raise RuntimeError("unspecified launch failure")
    assert "unspecified" in str(caught.value.__cause__)


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="out of memory"), naming_the_wait(Record(None)):
        raise RuntimeError("out of memory")


def test_others_are_asked_only_after_a_wait() -> None:
    with (
        pytest.raises(WatchdogError, match="rank 1 waited; rank 0 did not"),
        naming_the_wait(Record("rank 1 waited"), who=lambda: "; rank 0 did not"),
    ):
        raise RuntimeError("unspecified launch failure")
    with pytest.raises(RuntimeError, match="out of memory"), naming_the_wait(Record(None), who=lambda: pytest.fail("asked")):
        raise RuntimeError("out of memory")


def test_ranks_that_do_not_report_are_named() -> None:
    store = HashStore()
    assert silent_ranks(store, "moe", 3, 4, 0.1) == [0, 1, 2]
    assert silent_ranks(store, "moe", 1, 4, 0.1) == [0, 2]
    assert silent_ranks(store, "another", 1, 2, 0.1) == [0]
    assert silent_ranks(store, "moe", 0, 4, 0.0) == [1, 2, 3]  # without a look
    assert silent_ranks(store, "moe", 2, 4, 5.0) == []
    assert name_silent([0, 2], 0.1) == "; rank 0, 2 did not report a wait within 0.1 s"
    assert (name_silent([]), name_silent(None)) == ("; all ranks waited", "")


def test_a_store_that_is_gone_is_no_error() -> None:
    class Gone:
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("connection closed")

    assert silent_ranks(Gone(), "moe", 1, 2) is None


def test_a_host_that_looks_at_a_gpu_waits_for_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream and its pinned memory are its own, and there before anything waits."""
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda: "its stream")
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **given: asked.append(given))
    row = SimpleNamespace(is_cuda=True)
    host = Understudy(SimpleNamespace(view=lambda name: [row] if name == "expert_recv_count" else row), 3)
    assert host._stream == "its stream" and asked == [{"device": "cpu", "pin_memory": True}] * (len(STATE) + 1)


def test_a_hosts_copies_have_ended_when_it_looks_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a stream of its own: a kernel that waits holds the others."""
    fields = {name: torch.full((2,), number) for number, name in enumerate(STATE)}
    host = Understudy(SimpleNamespace(view=lambda name: fields.get(name, torch.zeros(3, 2))), 3)
    events: list[str] = []

    @contextmanager
    def on(stream: object) -> Iterator[None]:
        events.append(f"on {stream}")
        yield
        events.append("off")

    class Stream:
        def synchronize(self) -> None:
            events.append("ended")

        def __str__(self) -> str:
            return "its stream"

    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(host, "_stream", Stream())
    found = host.look()
    assert events == ["on its stream", "off", "ended"] * len(STATE)
    assert {name: one.tolist() for name, one in found.items()} == {name: one.tolist() for name, one in fields.items()}


@pytest.mark.parametrize("limit", [0, -1, 1 << 63, 1.5, True, "1", None])
def test_a_limit_of_waits_is_a_number_of_63_bits(limit: object) -> None:
    assert check_watchdog_ns(1) == 1 and check_watchdog_ns((1 << 63) - 1) == (1 << 63) - 1
    with pytest.raises(ProblemError, match=r"watchdog_ns = .*: must be a whole number of nanoseconds, from 1 to 2\^63 - 1"):
        check_watchdog_ns(limit)  # type: ignore[arg-type]
