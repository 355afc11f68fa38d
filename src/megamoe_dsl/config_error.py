"""The error of a configuration's field, and the checks that raise it."""

from __future__ import annotations


class ConfigError(ValueError):
    """A field of a kernel's configuration is out of range; the message names the field, its value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} = {value!r}: must be {allowed}")
        self.field, self.value, self.allowed = field, value, allowed


def require(holds: bool, field: str, value: object, allowed: str) -> None:
    """Raises `ConfigError` unless `holds`."""
    if not holds:
        raise ConfigError(field, value, allowed)


def require_integer(field: str, value: object) -> None:
    """Raises `ConfigError` for what is no integer."""
    require(isinstance(value, int) and not isinstance(value, bool), field, value, "an integer")


def require_integers(config: object, *names: str) -> None:
    """The same for fields of a configuration."""
    for name in names:
        require_integer(name, getattr(config, name))
