"""Write draws as one NetCDF file in ArviZ's schema, which holds all that `Draws` needs.

The groups are those of `Draws.to_datatree`, and `unconstrained` for the positions. What is no array
is JSON in the attribute `tallmc`. There are no pickles. `saved.py` reads the file.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import InvalidInput
from ..core.files import TEMPORARY
from ..core.packages import check_installed
from ..core.quantities import Parameters
from ..methods.account import Account

FILE = "draws.nc"
VERSION = 1


def save(draws: Any, path: str | os.PathLike[str]) -> None:
    """Write draws to a NetCDF file. An existing file is replaced when the new one is complete."""
    check_installed("arviz_base", "netCDF4", needed_by="Draws.save")
    import xarray as xr

    tree = draws.to_datatree()
    dims = ("chain", "draw", "coordinate")
    position = xr.Dataset({"position": (dims, np.asarray(draws.positions))})
    tree["unconstrained"] = xr.DataTree(position)
    nodes = dict(zip(draws.quantities.shapes, map(str, tree["posterior"].data_vars), strict=True))
    tree.attrs["tallmc"] = json.dumps(_content(draws) | {"nodes": nodes}, ensure_ascii=False)
    path = Path(path)
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        tree.to_netcdf(temporary, engine="netcdf4")
        os.replace(temporary, path)
    except OSError as error:
        raise InvalidInput("path", "be a file that can be written", f"{path}: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _content(draws: Any) -> dict[str, Any]:
    quantities, layout = draws.quantities, draws.layout
    settings = {
        key: value if isinstance(value, (int, str, dict)) else repr(value)
        for key, value in draws.settings.items()
    }
    return {
        "version": VERSION,
        "parameters": {
            name: list(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)
        },
        "entries": {name: list(entries) for name, entries in layout.entries.items()},
        "plain": isinstance(quantities, Parameters),
        "dims": {name: list(quantities.dims.get(name, ())) for name in quantities.shapes},
        "coords": {name: list(entries) for name, entries in quantities.coords.items()},
        "outcomes": [int(outcome) for outcome in draws.outcomes],
        "n_row_evals": [
            draws.n_row_evals_sampling,
            draws.n_row_evals_preparation,
            draws.n_row_evals_check,
        ],
        "timing": dataclasses.asdict(draws.timing),
        "settings": settings,
        "stopped_by": draws.stopped_by,
        "account": None if draws.account is None else _account_content(draws.account),
    }


def _account_content(account: Account) -> dict[str, Any]:
    def listed(values: Any) -> list[float] | None:
        return None if values is None else np.asarray(values, float).tolist()

    bias = account.bias
    return {
        "budget": dataclasses.asdict(account.budget),
        "reasons": list(account.reasons),
        "doubts": list(account.doubts),
        "bias": None if bias is None else {k: listed(v) for k, v in bias._asdict().items()},
        "exact": account.exact,
        "inflation": listed(account.inflation),
        "noise_tail": account.noise_tail,
        "notes": list(account.notes),
        "unmeasured": account.unmeasured,
    }
