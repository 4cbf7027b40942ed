"""Files of draws: NetCDF in ArviZ's schema.

The groups are those of `Draws.to_datatree`, and `unconstrained` for the positions. What is no array
is JSON in the attribute `tallmc`. There are no pickles.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._core.arrays import AbstractQuantities, Layout, Parameters, StoredQuantities
from .._core.errors import InvalidInput, Outcome
from .._core.files import TEMPORARY, from_json
from .._core.packages import check_installed
from ..methods.abstract import Account
from ..methods.automatic.update import FittedSeries
from ..models.predictive import AbstractPredictive

FILE = "draws.nc"
FIT_FILE = "fit.json"  # what `tallmc fit` writes about the model, beside the draws
_VERSION = 1
_LONGEST = 240  # bytes; NetCDF allows 256, which leaves room for a number
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def node_names(names: Iterable[str], taken: Iterable[str] = ("chain", "draw")) -> dict[str, str]:
    """A name for each variable or dimension: its own where possible, and no name twice.

    NetCDF refuses slashes, control characters, some first characters, spaces at the end, and long
    names. `chain` and `draw` are dimensions.
    """
    given, used = list(names), set(taken)
    found = {name: name for name in given if _plain(name) == name and name not in used}
    used |= set(found)
    for name in given:
        if name in found:
            continue
        plain = unused = _plain(name)
        number = 2
        while unused in used:
            unused, number = f"{plain}_{number}", number + 1
        found[name] = unused
        used.add(unused)
    return {name: found[name] for name in given}


def _plain(name: str) -> str:
    kept = _CONTROL.sub(" ", name).replace("/", "∕")
    first = kept[:1]
    starts_well = first.isalnum() or first == "_" or not first.isascii()
    kept = kept if starts_well and first else f"_{kept}"
    return kept.encode()[:_LONGEST].decode(errors="ignore").rstrip()


def write_draws(draws: Any, path: str | os.PathLike[str]) -> None:
    """Write a `Draws`. An existing file is replaced when the new one is complete."""
    check_installed("arviz_base", "netCDF4", needed_by="Draws.save")
    import xarray as xr

    tree = draws.to_datatree()
    dims = ("chain", "draw", "coordinate")
    position = xr.Dataset({"position": (dims, np.asarray(draws.positions))})
    tree["unconstrained"] = xr.DataTree(position)
    if draws.series is not None:
        tree["series"] = xr.DataTree(_series_arrays(draws.series))
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
    return {
        "version": _VERSION,
        "parameters": shapes_by_name(layout),
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
        "settings": {
            key: value if isinstance(value, (int, float, str, dict)) else repr(value)
            for key, value in draws.settings.items()
        },
        "stopped_by": draws.stopped_by,
        "account": None if draws.account is None else _account_content(draws.account),
        "about": saved_about(draws.predictive) or dict(draws.about),
        "series": None if draws.series is None else _series_content(draws.series),
    }


def saved_about(predictive: AbstractPredictive | None) -> dict[str, Any]:
    """JSON from which `tallmc.load` makes the law of the response again."""
    return {} if predictive is None else dict(predictive.to_json())


def _series_content(series: FittedSeries) -> dict[str, Any]:
    numbers = ("n_rows", "accurate", "shards", "moved")
    names = {"arrays": list(series.arrays), "model": list(series.model)}
    return {name: getattr(series, name) for name in numbers} | names


def _series_arrays(series: FittedSeries) -> Any:
    """The arrays by number, since their names are paths; `_series_content` has the names."""
    import xarray as xr

    arrays = [*series.arrays.values(), *series.model.values()]
    return xr.Dataset(
        {
            f"a{k}": ([f"a{k}_{axis}" for axis in range(values.ndim)], values)
            for k, values in enumerate(arrays)
        }
    )


def _series_from(content: Mapping[str, Any], group: Any) -> FittedSeries:
    arrays = [group[f"a{k}"].to_numpy() for k in range(len(group.data_vars))]
    count = len(content["arrays"])
    return FittedSeries(
        int(content["n_rows"]),
        bool(content["accurate"]),
        dict(zip(map(str, content["arrays"]), arrays[:count], strict=True)),
        dict(zip(map(str, content["model"]), arrays[count:], strict=True)),
        str(content["shards"]),
        moved=float(content["moved"]),
    )


def _account_content(account: Account) -> dict[str, Any]:
    def listed(values: Any) -> list[float] | None:
        return None if values is None else np.asarray(values, float).tolist()

    bias = account.bias
    return {
        **{name: value for name, value in vars(account).items() if name != "method"},
        "budget": dataclasses.asdict(account.budget),
        "bias": None if bias is None else {k: listed(v) for k, v in bias._asdict().items()},
        "inflation": listed(account.inflation),
    }


def read_draws(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of the `Draws` that `write_draws` wrote; those of `timing` as a dict."""
    check_installed("netCDF4", needed_by="tallmc.load")
    import xarray as xr

    try:
        with xr.open_datatree(path, engine="netcdf4") as tree:
            tree.load()
        content = json.loads(tree.attrs["tallmc"])
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}")
        return _fields(tree, content)
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        rule = "be draws that Draws.save or `tallmc fit` wrote"
        raise InvalidInput("path", rule, f"{path}: {error}") from None


def layout_of_shapes(stored: dict[str, Any]) -> Layout:
    """The layout of parameters whose shapes `shapes_by_name` returned, as a dict by name."""
    shapes = {str(name): tuple(map(int, shape)) for name, shape in stored.items()}
    treedef = jax.tree.structure(collections.OrderedDict.fromkeys(shapes, 0))
    return Layout(treedef, tuple(shapes), tuple(shapes.values()))


def shapes_by_name(layout: Layout) -> dict[str, list[int]]:
    """The shapes of the parameters, for JSON."""
    return {name: list(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)}


def _fields(tree: Any, content: dict[str, Any]) -> dict[str, Any]:
    layout = layout_of_shapes(content["parameters"]).labelled(content["entries"])
    quantities: AbstractQuantities = Parameters(layout)
    if not content["plain"]:
        dims = {name: tuple(found) for name, found in content["dims"].items() if found}
        coords = {name: tuple(found) for name, found in content["coords"].items()}
        posterior, nodes = tree["posterior"], content["nodes"]
        values = {name: posterior[nodes[name]].to_numpy() for name in content["dims"]}
        quantities = StoredQuantities(values, dims, coords)
    sampling, preparation, check = content["n_row_evals"]
    stats, account = tree["sample_stats"], content["account"]
    series = content.get("series")
    return {
        "positions": tree["unconstrained"]["position"].to_numpy(),
        "sample_stats": {
            name: stats[name].to_numpy() for name in stats.data_vars if name != "weight"
        },
        "outcomes": tuple(Outcome(code) for code in content["outcomes"]),
        "n_row_evals_sampling": sampling,
        "n_row_evals_preparation": preparation,
        "n_row_evals_check": check,
        "timing": content["timing"],
        "layout": layout,
        "settings": content["settings"],
        "account": None if account is None else account_from(account),
        "stopped_by": content["stopped_by"],
        "quantities": quantities,
        "about": content.get("about", {}),
        "series": None if series is None else _series_from(series, tree["series"]),
    }


def account_from(content: Mapping[str, Any]) -> Account:
    """The account that JSON describes, without its method."""
    return from_json(Account, {**content, "bias": content.get("bias") or None, "method": None})
