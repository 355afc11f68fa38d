"""What a handler answers when its instruction did not simply complete."""

from __future__ import annotations


class Outcome:
    """One of BLOCK, YIELD and EXIT."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


BLOCK = Outcome("BLOCK")  # not executed: try again later (the same lanes, the same instruction)
YIELD = Outcome("YIELD")  # executed, but it only polled: let others run before going on
EXIT = Outcome("EXIT")  # these lanes leave the kernel
