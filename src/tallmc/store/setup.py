"""What a run was asked for and what preparation made of it, as JSON and arrays; and back, given the posterior.

The kernel's arrays (weights, tables, the anchor's gradient and curvature) are stored, its structure is not: the method, which is
stored as data, is prepared again with the stored anchor, and the stored arrays are put in the places of those that this gives.
The rows themselves are the posterior's, and are not stored.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._account import Account, Bias, Budget
from .._anchor import Anchor
from .._errors import InvalidInput
from .._goal import Goal
from .._leaves import named_leaves, with_leaves
from .._method import AbstractMethod
from .._posterior import AbstractPosterior
from .._started import Started
from .arrays import read_arrays, write_arrays
from .files import StoreError, Written, is_intact, open_inside, write_file
from .fingerprint import environment, fingerprint
from .folder import Folder
from .methods import NotData, decode_method, encode_method
from .weights import weight_curve

_COPIES = ("setup", "setup-copy")
_MOST_BYTES = 2**26
_NONE = type(None)
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("goal", "posterior", "parameters", "labels", "about", "environment"), dict),
    **dict.fromkeys(("method", "account", "anchor", "weights"), (dict, _NONE)),
    **dict.fromkeys(("seed", "burn_in", "thin", "n_row_evals", "n_rows"), int),
    **dict.fromkeys(("method_shown", "dtype", "started"), str),
    "has_accept_step": bool,
    "not_data": (str, _NONE),
    "seconds": (int, float),
}
"""What a setup says, and how."""


@dataclasses.dataclass(frozen=True)
class Setup:
    content: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def group(self, name: str) -> dict[str, np.ndarray]:
        """The arrays under `name/`, without that."""
        return {key.removeprefix(f"{name}/"): values for key, values in self.arrays.items() if key.startswith(f"{name}/")}

    @property
    def goal(self) -> Goal:
        return Goal.of(**self.content["goal"])

    @property
    def account(self) -> Account | None:
        """What the automatic choice said before the run; its method is for `restored` to know."""
        stored, bias = self.content["account"], self.group("bias")
        if stored is None:
            return None
        return Account(
            method=None,
            budget=Budget(**stored["budget"]),
            reasons=tuple(map(str, stored["reasons"])),
            doubts=tuple(map(str, stored["doubts"])),
            bias=Bias(**bias) if bias else None,
            exact=bool(stored["exact"]),
        )


def make_setup(posterior: AbstractPosterior, started: Started, folder: Folder) -> Setup:
    own = {id(leaf) for leaf in jax.tree.leaves(posterior) if eqx.is_array(leaf)}
    kernel = {path: leaf for path, leaf in named_leaves(started.kernel).items() if id(leaf) not in own}
    groups: dict[str, Mapping[str, Any]] = {"kernel": kernel, "anchor": _anchor_arrays(started.anchor)}
    try:
        method, groups["method"] = encode_method(started.method)
        not_data = None
    except NotData as error:
        method, not_data = None, str(error)
    account = started.account
    if account is not None and account.bias is not None:
        groups["bias"] = account.bias._asdict()
    arrays = {f"{group}/{name}": np.asarray(values) for group, found in groups.items() for name, values in found.items()}
    content = {
        "method": method,
        "method_shown": " · ".join(started.method.axes.values()),
        "has_accept_step": started.method.has_accept_step,
        "not_data": not_data,
        "seed": started.seed,
        "burn_in": started.burn_in,
        "thin": started.thin,
        "goal": started.goal._asdict(),
        "n_row_evals": started.n_row_evals,
        "seconds": started.seconds,
        "account": None if account is None else _account_content(account),
        "anchor": None if started.anchor is None else _anchor_numbers(started.anchor),
        "posterior": fingerprint(posterior),
        "n_rows": posterior.n_rows,
        "dtype": jnp.dtype(posterior.dtype).name,
        "parameters": {name: list(shape) for name, shape in zip(posterior.layout.names, posterior.layout.shapes, strict=True)},
        "labels": {name: list(entries) for name, entries in folder.labels.items()},
        "about": dict(folder.about),
        "weights": weight_curve(started.kernel),
        "environment": environment(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }
    return Setup(content, arrays | {"start": np.asarray(started.start)})


def write_setup(folder: Path, setup: Setup) -> dict[str, Written]:
    """Twice: it is written once, and without it no block is of any use."""
    text = json.dumps(setup.content, indent=1, ensure_ascii=False, allow_nan=False).encode()
    written = {}
    for name in _COPIES:
        written[f"{name}.json"] = write_file(folder, f"{name}.json", text)
        written[f"{name}.npz"] = write_arrays(folder, f"{name}.npz", setup.arrays)
    return written


def read_setup(folder: Path, files: dict[str, Written]) -> Setup:
    content = arrays = None
    for name in _COPIES:
        if content is None and _is_whole(folder, f"{name}.json", files):
            with open_inside(folder, f"{name}.json") as file:
                if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                    raise StoreError(folder, "have a setup of reasonable size", name)
                content = json.loads(file.read().decode())
        if arrays is None and _is_whole(folder, f"{name}.npz", files):
            arrays = read_arrays(folder, f"{name}.npz")
    if not isinstance(content, dict) or arrays is None:
        raise StoreError(folder, "have one intact copy of its setup", "none", "Restore the folder from a copy.")
    for key, kinds in _KINDS.items():
        if not isinstance(content.get(key), kinds) or (isinstance(content[key], bool) and kinds is int):
            raise StoreError(folder, f"say its {key} as {kinds}", content.get(key))
    return Setup(content, arrays)


def restored(setup: Setup, posterior: AbstractPosterior, method: AbstractMethod | None) -> Started:
    """The run as it was started; `method` is asked for where the stored one is not data."""
    content = setup.content
    if content["method"] is not None and method is not None:
        raise InvalidInput("method", "be left out: it is in the store", method)
    if content["method"] is None and method is None:
        rule = f"be given again: the store cannot hold {content['not_data']}"
        raise InvalidInput("method", rule, None, "Pass the very method that the run was started with.")
    chosen = decode_method(content["method"], setup.group("method")) if method is None else method
    anchor = _anchor(posterior, content["anchor"], setup.group("anchor"))
    prepared = chosen.prepare(posterior, anchor, seed=content["seed"])
    account = setup.account
    return Started(
        method=chosen,
        kernel=with_leaves(prepared.kernel, setup.group("kernel")),
        anchor=anchor,
        account=None if account is None else dataclasses.replace(account, method=chosen),
        start=jnp.asarray(setup.arrays["start"]),
        burn_in=content["burn_in"],
        thin=content["thin"],
        seed=content["seed"],
        goal=setup.goal,
        n_row_evals=content["n_row_evals"],
        seconds=content["seconds"],
    )


def _is_whole(folder: Path, name: str, files: dict[str, Written]) -> bool:
    return name in files and is_intact(folder, name, files[name])


def _account_content(account: Account) -> dict[str, Any]:
    return {
        "budget": dataclasses.asdict(account.budget),
        "reasons": list(account.reasons),
        "doubts": list(account.doubts),
        "exact": account.exact,
    }


_NUMBERS = ("potential", "decrement", "n_row_evals")


def _anchor_numbers(anchor: Anchor) -> dict[str, Any]:
    return {name: getattr(anchor, name) for name in _NUMBERS}


def _anchor_arrays(anchor: Anchor | None) -> dict[str, Any]:
    return {} if anchor is None else {name: values for name, values in vars(anchor).items() if eqx.is_array(values)}


def _anchor(posterior: AbstractPosterior, numbers: dict[str, Any] | None, arrays: dict[str, np.ndarray]) -> Anchor | None:
    if numbers is None:
        return None
    fields = [field.name for field in dataclasses.fields(Anchor) if field.name not in _NUMBERS]
    found: dict[str, Any] = {name: jnp.asarray(arrays[name], posterior.dtype) if name in arrays else None for name in fields}
    return Anchor(**found, **{name: numbers[name] for name in _NUMBERS})
