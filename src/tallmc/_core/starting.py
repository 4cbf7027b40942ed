"""Ctrl-C while the command imports its packages: the process ends at once and without a traceback.

An exception would be raised in the middle of an import. Extension modules turn it into an
`ImportError` or crash. This file imports nothing that takes long.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def is_the_command() -> bool:
    """Whether this process is `tallmc` or `python -m tallmc`."""
    name = os.path.basename((sys.argv or [""])[0])
    return name == "tallmc" or (name == "-m" and "tallmc" in sys.orig_argv)


def end_quietly_on_ctrl_c() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again_on_ctrl_c() -> None:
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: object) -> NoReturn:
    os._exit(130)
