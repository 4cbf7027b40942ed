"""Store a run plan as JSON and arrays, and restore it for a given posterior.

The structure and the arrays of the kernel are stored, except for its model. The model comes with
the posterior, whose rows are not stored either. Resuming a run does not prepare the method again,
unless a part has a class of the user's own (`kernels.py`).
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
import jax.numpy as jnp
import numpy as np

from ..anchor.anchor import Anchor
from ..core.errors import InvalidInput
from ..core.files import FileDigest, write_file
from ..core.quantities import AbstractQuantities
from ..engine.goal import Goal
from ..methods.account import Account, Bias, ErrorBudget
from ..methods.base import AbstractMethod
from ..methods.run_plan import RunPlan
from ..models.posterior import AbstractPosterior
from .arrays import read_arrays, write_arrays
from .files import StoreError, is_intact, open_inside
from .fingerprint import environment, fingerprint
from .folder import Folder
from .kernels import decode_kernel, encode_kernel
from .methods import NotSerialisable, decode_method, encode_method
from .weights import weight_curve

_COPY_NAMES = ("setup", "setup-copy")
_MOST_BYTES = 2**26
_NONE_TYPE = type(None)
_CONTENT_TYPES: dict[str, Any] = {
    **dict.fromkeys(
        (
            "goal",
            "posterior",
            "parameters",
            "quantities",
            "description",
            "about",
            "environment",
            "kernel",
        ),
        dict,
    ),
    **dict.fromkeys(("method", "account", "anchor", "weights"), (dict, _NONE_TYPE)),
    **dict.fromkeys(("seed", "burn_in", "thin", "n_row_evals", "n_rows"), int),
    **dict.fromkeys(("method_shown", "dtype", "started"), str),
    "has_accept_step": bool,
    "not_data": (str, _NONE_TYPE),
    "seconds": (int, float),
}
"""The keys of a setup, and their types."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """A run plan as JSON content and named arrays."""

    content: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def group(self, name: str) -> dict[str, np.ndarray]:
        """The arrays whose names begin with `name/`, without this prefix."""
        return {
            key.removeprefix(f"{name}/"): values
            for key, values in self.arrays.items()
            if key.startswith(f"{name}/")
        }

    @property
    def goal(self) -> Goal:
        return Goal.of(**self.content["goal"])

    @property
    def account(self) -> Account | None:
        """The account before the run, without its method."""
        stored, bias = self.content["account"], self.group("bias")
        if stored is None:
            return None
        return Account(
            method=None,
            budget=ErrorBudget(**stored["budget"]),
            reasons=tuple(map(str, stored["reasons"])),
            doubts=tuple(map(str, stored["doubts"])),
            bias=Bias(**bias) if bias else None,
            exact=bool(stored["exact"]),
            notes=tuple(map(str, stored.get("notes", ()))),
            unmeasured=stored.get("unmeasured"),
        )


def make_setup(plan: RunPlan, folder: Folder) -> Setup:
    """Encode a plan."""
    posterior = plan.posterior
    structure, kernel = encode_kernel(plan.kernel, plan.method)
    groups: dict[str, Mapping[str, Any]] = {"kernel": kernel, "anchor": _anchor_arrays(plan.anchor)}
    try:
        method, groups["method"] = encode_method(plan.method)
        not_data = None
    except NotSerialisable as error:
        method, not_data = None, str(error)
    if plan.account.bias is not None:
        groups["bias"] = plan.account.bias._asdict()
    arrays = {
        f"{group}/{name}": np.asarray(values)
        for group, found in groups.items()
        for name, values in found.items()
    }
    content = {
        "method": method,
        "method_shown": " · ".join(plan.method.axes.values()),
        "has_accept_step": plan.method.has_accept_step,
        "not_data": not_data,
        "seed": plan.seed,
        "burn_in": plan.burn_in,
        "thin": plan.thin,
        "goal": plan.goal._asdict(),
        "check": plan.check,
        "n_row_evals": plan.n_row_evals,
        "seconds": plan.seconds,
        "account": _account_content(plan.account),
        "anchor": None if plan.anchor is None else _anchor_numbers(plan.anchor),
        "posterior": fingerprint(posterior),
        "n_rows": posterior.n_rows,
        "dtype": jnp.dtype(posterior.dtype).name,
        "parameters": {
            name: list(shape)
            for name, shape in zip(posterior.layout.names, posterior.layout.shapes, strict=True)
        },
        "quantities": _quantities_content(posterior.quantities),
        "description": dict(posterior.description),
        "about": dict(folder.about),
        "kernel": structure,
        "weights": weight_curve(plan.kernel),
        "environment": environment(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }
    return Setup(content, arrays | {"start": np.asarray(plan.start)})


def write_setup(folder: Path, setup: Setup) -> dict[str, FileDigest]:
    """Write two copies, because the blocks are useless without the setup."""
    text = json.dumps(setup.content, indent=1, ensure_ascii=False, allow_nan=False).encode()
    written = {}
    for name in _COPY_NAMES:
        written[f"{name}.json"] = write_file(folder, f"{name}.json", text)
        written[f"{name}.npz"] = write_arrays(folder, f"{name}.npz", setup.arrays)
    return written


def read_setup(folder: Path, files: dict[str, FileDigest]) -> Setup:
    """Read the setup from intact copies."""
    content = arrays = None
    for name in _COPY_NAMES:
        if content is None and _is_whole(folder, f"{name}.json", files):
            with open_inside(folder, f"{name}.json") as file:
                if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                    raise StoreError(folder, "have a setup of reasonable size", name)
                content = json.loads(file.read().decode())
        if arrays is None and _is_whole(folder, f"{name}.npz", files):
            arrays = read_arrays(folder, f"{name}.npz")
    if not isinstance(content, dict) or arrays is None:
        raise StoreError(
            folder, "have one intact copy of its setup", "none", "Restore the folder from a copy."
        )
    for key, types in _CONTENT_TYPES.items():
        if not isinstance(content.get(key), types) or (
            isinstance(content[key], bool) and types is int
        ):
            raise StoreError(folder, f"give its {key} as {types}", content.get(key))
    return Setup(content, arrays)


def restored(setup: Setup, posterior: AbstractPosterior, method: AbstractMethod | None) -> RunPlan:
    """Restore the stored plan; `method` is required if the store could not hold the method."""
    content = setup.content
    if content["method"] is not None and method is not None:
        raise InvalidInput("method", "be left out, because the store holds it", method)
    if content["method"] is None and method is None:
        rule = f"be given again: the store cannot hold {content['not_data']}"
        raise InvalidInput("method", rule, None, "Pass the method that the run was started with.")
    chosen = decode_method(content["method"], setup.group("method")) if method is None else method
    account = setup.account
    anchor = _decode_anchor(posterior, content["anchor"], setup.group("anchor"))
    kernel = decode_kernel(
        content["kernel"], setup.group("kernel"), posterior, chosen, anchor, content["seed"]
    )
    return RunPlan(
        posterior=posterior,
        method=chosen,
        kernel=kernel,
        anchor=anchor,
        account=Account(chosen, exact=chosen.exact)
        if account is None
        else dataclasses.replace(account, method=chosen),
        start=jnp.asarray(setup.arrays["start"]),
        burn_in=content["burn_in"],
        thin=content["thin"],
        seed=content["seed"],
        goal=setup.goal,
        check=bool(content.get("check", False)),
        n_row_evals=content["n_row_evals"],
        seconds=content["seconds"],
    )


def _is_whole(folder: Path, name: str, files: dict[str, FileDigest]) -> bool:
    return name in files and is_intact(folder, name, files[name])


def _quantities_content(quantities: AbstractQuantities) -> dict[str, Any]:
    return {
        "shapes": {name: list(shape) for name, shape in quantities.shapes.items()},
        "dims": {name: list(dims) for name, dims in quantities.dims.items()},
        "coords": {name: list(entries) for name, entries in quantities.coords.items()},
    }


def _account_content(account: Account) -> dict[str, Any]:
    return {
        "budget": dataclasses.asdict(account.budget),
        "reasons": list(account.reasons),
        "doubts": list(account.doubts),
        "exact": account.exact,
        "notes": list(account.notes),
        "unmeasured": account.unmeasured,
    }


_ANCHOR_NUMBERS = ("potential", "decrement", "n_row_evals", "converged")


def _anchor_numbers(anchor: Anchor) -> dict[str, Any]:
    return {name: getattr(anchor, name) for name in _ANCHOR_NUMBERS}


def _anchor_arrays(anchor: Anchor | None) -> dict[str, Any]:
    return (
        {}
        if anchor is None
        else {name: values for name, values in vars(anchor).items() if eqx.is_array(values)}
    )


def _decode_anchor(
    posterior: AbstractPosterior, numbers: dict[str, Any] | None, arrays: dict[str, np.ndarray]
) -> Anchor | None:
    if numbers is None:
        return None
    fields = [
        field.name for field in dataclasses.fields(Anchor) if field.name not in _ANCHOR_NUMBERS
    ]
    found: dict[str, Any] = {
        name: jnp.asarray(arrays[name], posterior.dtype) if name in arrays else None
        for name in fields
    }
    return Anchor(**found, **numbers)
