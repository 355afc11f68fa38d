"""The `megamoe` command.  torch, cutlass and the simulator load when a command needs them, so that `--help` is quick."""

from .app import app, main

__all__ = ["app", "main"]
