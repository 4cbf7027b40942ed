"""The command line. `tallmc --help` lists the commands."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .._core.errors import InvalidInput, PreparationError, in_shell
from .._core.packages import INSTALLED_BY, missing
from .._core.starting import raise_again_on_ctrl_c
from .signals import AFTER_SIGNALS, end_at_once


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line on `arguments`, by default `sys.argv[1:]`, and exit with its status."""

    def make() -> Any:
        from .app import app, command

        return command(app)

    run_command(make, "tallmc", arguments)


def run_command(
    make: Callable[[], Any], name: str, arguments: Sequence[str] | None = None
) -> NoReturn:
    """Run the command that `make` returns, and exit with its status.

    `InvalidInput`, `PreparationError` and missing packages become messages with exit status 2. Any
    other exception is a bug and keeps its traceback. After a signal the process ends without the
    teardown of the interpreter.
    """
    try:
        command = make()
        raise_again_on_ctrl_c()
        command(args=None if arguments is None else list(arguments), prog_name=name)
    except SystemExit as ended:
        if isinstance(ended.code, int) and ended.code in AFTER_SIGNALS.values():
            end_at_once(ended.code)
        raise
    except KeyboardInterrupt:
        end_at_once(AFTER_SIGNALS[signal.SIGINT])
    except (InvalidInput, PreparationError) as error:
        _fail(f"tallmc: {in_shell(str(error))}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in INSTALLED_BY:
            raise
        _fail(f"tallmc: {missing(package, 'the command line')}")
    sys.exit(0)


def _fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)
