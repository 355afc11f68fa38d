"""An error becomes a `WatchdogError` when a record explains it, and stays itself otherwise."""

from dataclasses import dataclass

import pytest
from torch.distributed import HashStore

from megamoe_dsl.runtime.watchdog import WatchdogError, naming_the_wait, who_waits


@dataclass
class Record:
    message: str | None

    def watchdog_message(self) -> str | None:
        return self.message


def test_a_record_names_the_wait() -> None:
    with pytest.raises(WatchdogError, match="rank 1, SM 3") as caught, naming_the_wait(Record(None), Record("rank 1, SM 3: wait RANK")):
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
    assert who_waits(store, "moe", 3, 4, 0.1) == "; rank 0, 1, 2 did not report a wait within 0.1 s"
    assert who_waits(store, "moe", 1, 4, 0.1) == "; rank 0, 2 did not report a wait within 0.1 s"
    assert who_waits(store, "another", 1, 2, 0.1) == "; rank 0 did not report a wait within 0.1 s"
    who_waits(store, "moe", 0, 4, 0.0)
    assert who_waits(store, "moe", 2, 4, 5.0) == "; all ranks waited"


def test_a_store_that_is_gone_is_no_error() -> None:
    class Gone:
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("connection closed")

    assert who_waits(Gone(), "moe", 1, 2) == ""
