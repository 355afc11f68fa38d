"""An error becomes a `WatchdogError` when a record explains it, and stays itself otherwise."""

from dataclasses import dataclass

import pytest
from torch.distributed import HashStore

from megamoe_dsl.runtime.watchdog import WatchdogError, name_silent, naming_the_wait, silent_ranks


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
    assert silent_ranks(store, "moe", 3, 4, 0.1) == [0, 1, 2]
    assert silent_ranks(store, "moe", 1, 4, 0.1) == [0, 2]
    assert silent_ranks(store, "another", 1, 2, 0.1) == [0]
    silent_ranks(store, "moe", 0, 4, 0.0)
    assert silent_ranks(store, "moe", 2, 4, 5.0) == []
    assert name_silent([0, 2], 0.1) == "; rank 0, 2 did not report a wait within 0.1 s"
    assert (name_silent([]), name_silent(None)) == ("; all ranks waited", "")


def test_a_store_that_is_gone_is_no_error() -> None:
    class Gone:
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("connection closed")

    assert silent_ranks(Gone(), "moe", 1, 2) is None
