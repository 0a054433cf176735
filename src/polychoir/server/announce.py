"""Lines for whoever started the process. That nobody reads them any more is no reason to end."""

from __future__ import annotations

import os
import sys


def announce(text: str) -> None:
    """Print on stdout; a reader that has gone (`polychoir serve | head -1`) is not missed."""
    try:
        print(text, flush=True)
    except OSError:
        abandon_stdout()


def abandon_stdout() -> None:
    """Let stdout lead nowhere, so that what is left in its buffer does not fail again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
