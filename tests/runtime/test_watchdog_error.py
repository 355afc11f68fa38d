"""An error becomes a `WatchdogError` when a record explains it, and stays itself otherwise."""

from dataclasses import dataclass

import pytest

from megamoe_dsl.runtime.watchdog import WatchdogError, naming_the_wait


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
