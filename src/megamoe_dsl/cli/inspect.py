"""`megamoe inspect`."""


def inspect() -> None:
    """x"""
