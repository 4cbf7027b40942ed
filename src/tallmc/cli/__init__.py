"""The command line: `tallmc fit`, `tallmc demo`, `tallmc methods`, `tallmc reproduce`, `tallmc data`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from .._errors import InvalidInput, PreparationError

_EXTRAS = {"typer", "rich", "pyarrow", "matplotlib", "arviz_base", "arviz_stats", "xarray", "netCDF4", "pandas"}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line on `arguments` (the process's own by default) and exit with its status.

    Errors of ours are messages to the user and end in status 2; anything else is a bug and keeps its traceback.
    """
    try:
        from .app import app

        app(args=None if arguments is None else list(arguments), prog_name="tallmc")
    except (InvalidInput, PreparationError) as error:
        _fail(f"tallmc: {error}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        _fail(f'tallmc: the command line needs {package}, which is not installed. Run: pip install "tallmc[cli]"')
    sys.exit(0)


def _fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)
