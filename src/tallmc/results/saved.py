"""Read draws from the NetCDF file that `Draws.save` wrote."""

from __future__ import annotations

import collections
import json
import os
from typing import Any

import jax
import numpy as np

from ..core.errors import InvalidInput
from ..core.layout import Layout
from ..core.outcome import Outcome
from ..core.packages import check_installed
from ..core.quantities import AbstractQuantities, Parameters, StoredQuantities
from ..methods.account import Account, Bias, ErrorBudget
from .draws import Draws, Timing
from .saving import VERSION


def load_saved(path: str | os.PathLike[str]) -> Draws:
    """Read draws that `save` wrote."""
    check_installed("netCDF4", needed_by="tallmc.load")
    import xarray as xr

    try:
        with xr.open_datatree(path, engine="netcdf4") as tree:
            tree.load()
        content = json.loads(tree.attrs["tallmc"])
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']}")
        return _draws(tree, content)
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        rule = "be draws that Draws.save or `tallmc fit` wrote"
        raise InvalidInput("path", rule, f"{path}: {error}") from None


def _draws(tree: Any, content: dict[str, Any]) -> Draws:
    shapes = {name: tuple(shape) for name, shape in content["parameters"].items()}
    treedef = jax.tree.structure(collections.OrderedDict.fromkeys(shapes, 0))
    layout = Layout(treedef, tuple(shapes), tuple(shapes.values())).labelled(content["entries"])
    quantities: AbstractQuantities = Parameters(layout)
    if not content["plain"]:
        dims = {name: tuple(found) for name, found in content["dims"].items() if found}
        coords = {name: tuple(found) for name, found in content["coords"].items()}
        posterior, nodes = tree["posterior"], content["nodes"]
        values = {name: posterior[nodes[name]].to_numpy() for name in content["dims"]}
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
