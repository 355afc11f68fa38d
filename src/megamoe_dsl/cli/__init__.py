"""The `megamoe` command.  torch, cutlass and the simulator load when a command needs them, so that `--help` is quick."""

import os
import signal
import sys

INTERRUPTED = 130


def main() -> None:
    """Entry point of the `megamoe` script.  An interrupt ends it quietly, while modules are imported and while a command runs."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started the process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    try:
        from .app import app

        app(prog_name="megamoe")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is left is to end
