"""Draws as one NetCDF file in ArviZ's schema, which holds all that `Draws` needs.

The groups are those of `Draws.to_datatree`, and `unconstrained` for the positions. What is no array
is JSON in the attribute `tallmc`. There are no pickles.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..core.errors import InvalidInput
from ..core.files import TEMPORARY
from ..core.layout import Layout
from ..core.outcome import Outcome
from ..core.packages import check_installed
from ..core.quantities import AbstractQuantities, Parameters, StoredQuantities
from ..methods.account import Account, Bias, ErrorBudget

if TYPE_CHECKING:
    from .draws import Draws

FILE = "draws.nc"
_VERSION = 1


def save(draws: Draws, path: str | os.PathLike[str]) -> None:
    """Write draws to a NetCDF file. An existing file is replaced when the new one is complete."""
    check_installed("arviz_base", "netCDF4", needed_by="Draws.save")
    import xarray as xr

    tree = draws.to_datatree()
    dims = ("chain", "draw", "coordinate")
    position = xr.Dataset({"position": (dims, np.asarray(draws.positions))})
    tree["unconstrained"] = xr.DataTree(position)
    tree.attrs["tallmc"] = json.dumps(_content(draws), ensure_ascii=False)
    path = Path(path)
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        tree.to_netcdf(temporary, engine="netcdf4")
        os.replace(temporary, path)
    except OSError as error:
        raise InvalidInput("path", "be a file that can be written", f"{path}: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def load_saved(path: str | os.PathLike[str]) -> Draws:
    """Read draws that `save` wrote."""
    check_installed("netCDF4", needed_by="tallmc.load")
    import xarray as xr

    try:
        with xr.open_datatree(path, engine="netcdf4") as tree:
            tree.load()
        content = json.loads(tree.attrs["tallmc"])
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}")
        return _draws(tree, content)
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        rule = "be draws that Draws.save or `tallmc fit` wrote"
        raise InvalidInput("path", rule, f"{path}: {error}") from None


def _content(draws: Draws) -> dict[str, Any]:
    quantities, layout = draws.quantities, draws.layout
    settings = {
        key: value if isinstance(value, (int, str, dict)) else repr(value)
        for key, value in draws.settings.items()
    }
    return {
        "version": _VERSION,
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


def _draws(tree: Any, content: dict[str, Any]) -> Draws:
    from .draws import Draws, Timing

    shapes = {name: tuple(shape) for name, shape in content["parameters"].items()}
    treedef = jax.tree.structure(collections.OrderedDict.fromkeys(shapes, 0))
    layout = Layout(treedef, tuple(shapes), tuple(shapes.values())).labelled(content["entries"])
    quantities: AbstractQuantities = Parameters(layout)
    if not content["plain"]:
        arrays = [tree["posterior"][name].to_numpy() for name in tree["posterior"].data_vars]
        dims = {name: tuple(found) for name, found in content["dims"].items() if found}
        coords = {name: tuple(found) for name, found in content["coords"].items()}
        values = dict(zip(content["dims"], arrays, strict=True))
        quantities = StoredQuantities(values, dims, coords)
    sampling, preparation, check = content["n_row_evals"]
    stats = tree["sample_stats"]
    return Draws(
        positions=tree["unconstrained"]["position"].to_numpy(),
        sample_stats={name: stats[name].to_numpy() for name in stats.data_vars if name != "weight"},
        outcomes=tuple(Outcome(code) for code in content["outcomes"]),
        n_row_evals_sampling=sampling,
        n_row_evals_preparation=preparation,
        n_row_evals_check=check,
        timing=Timing(**content["timing"]),
        layout=layout,
        settings=content["settings"],
        account=None if content["account"] is None else _account(content["account"]),
        stopped_by=content["stopped_by"],
        quantities=quantities,
    )


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


def _account(content: dict[str, Any]) -> Account:
    bias, inflation = content["bias"], content["inflation"]
    return Account(
        method=None,
        budget=ErrorBudget(**content["budget"]),
        reasons=tuple(content["reasons"]),
        doubts=tuple(content["doubts"]),
        bias=None if bias is None else Bias(**{k: np.asarray(v) for k, v in bias.items()}),
        exact=content["exact"],
        inflation=None if inflation is None else np.asarray(inflation),
        noise_tail=content["noise_tail"],
        notes=tuple(content["notes"]),
        unmeasured=content["unmeasured"],
    )
