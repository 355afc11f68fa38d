"""What a handler answers when its instruction did not simply complete."""

from __future__ import annotations


class Outcome:
    """One of BLOCK, PARK, YIELD and EXIT."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


BLOCK = Outcome("BLOCK")  # not executed: try again later (the same lanes, the same instruction, with lanes that come to it meanwhile)
PARK = Outcome("PARK")  # the same, but these lanes have arrived somewhere: those that come to it meanwhile stay apart
YIELD = Outcome("YIELD")  # executed, but it only polled: let others run before going on
EXIT = Outcome("EXIT")  # these lanes leave the kernel
