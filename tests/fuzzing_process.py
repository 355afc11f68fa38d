"""What a process of the fuzzer could do: die at its trial, fail, hang, or find nothing."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection

from fuzzing.options import FuzzOptions
from fuzzing.search import FoundError
from fuzzing.trial import read_trial

DIES, FAILS, HANGS = 0, 1, 2


def search(given: FuzzOptions, texts: tuple[str, ...], number: int, news: Connection) -> None:
    trial = read_trial(texts[0])
    news.send(trial)
    if number == DIES:
        os._exit(3)
    if number == FAILS:
        news.send(FoundError(trial, "large"))
        news.send(FoundError(trial, "told"))
    if number == HANGS:
        time.sleep(600)
